"""What ./dev says before it acts: its refusals, its steps, and what it asks a person to install."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ["awk", "cat", "dirname", "grep", "mkdir", "mktemp", "nproc", "paste", "sed", "tr"]


def dev(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "dev", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    "arguments, named",
    [
        (["nonsense"], "'nonsense'"),
        (["test", "--fast"], "'--fast'"),
        (["test", "unit", "no-such-step"], "'no-such-step'"),
        (["build", "release"], "'release'"),
        (["docs", "html"], "'html'"),
        (["nonsense", "--help"], "'nonsense'"),
    ],
)
def test_an_unknown_argument_is_refused_with_the_usage(arguments, named):
    result = dev(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("usage: ./dev COMMAND")
    assert named in result.stderr.splitlines()[-1]


def test_every_listed_step_is_defined_and_every_defined_step_listed():
    listing, quick = dev("test", "--list").stdout.split("\nquick: ")
    listed = [line.split()[0] for line in listing.splitlines()]
    checks = (ROOT / "tools/checks.sh").read_text()
    defined = re.findall(r"^step_(\w+)\(\)", checks, re.MULTILINE)
    assert sorted(name.replace("-", "_") for name in listed) == sorted(defined)
    assert set(quick.split()) <= set(listed)


def test_a_step_for_hours_is_selected_by_its_name_alone():
    script = """. tools/progress.sh; . tools/test.sh; select_steps "$1"; echo "${SELECTED[@]}" """
    assert "engines" not in in_bash(script, "all").split()
    assert in_bash(script, "engines").split()[-1] == "engines"


@pytest.mark.parametrize("name", ["quick", "all", "tree", "address-python", "engines"])
def test_what_a_selected_step_needs_is_selected_before_it(name):
    script = """
        . tools/progress.sh; . tools/test.sh; select_steps "$1"
        for step in "${SELECTED[@]}"; do echo "$step" $(needed_by "$step"); done"""
    before: set[str] = set()
    for line in in_bash(script, name).splitlines():
        step, *needed = line.split()
        assert before >= set(needed), step
        before.add(step)


def bare_machine(folder: Path, **scripts: str) -> str:
    """Makes a PATH with what every Debian has, apt-get, and an ordinary user."""
    for name in PROGRAMS:
        (folder / name).symlink_to(Path("/usr/bin") / name)
    scripts = {"apt-get": "exit 1", "id": "[ $1 = -u ] && echo 1000 || echo users", **scripts}
    for name, body in scripts.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    return str(folder)


def printed_command(result: subprocess.CompletedProcess[str]) -> list[str]:
    """Returns the one command that a person is asked to paste, in words."""
    assert result.returncode == 1
    assert result.stdout == ""
    commands = [line for line in result.stderr.splitlines() if "apt-get" in line]
    assert len(commands) == 1
    return shlex.split(commands[0])


@pytest.mark.parametrize("command", ["demo", "test", "build", "docs", "bench"])
def test_a_user_without_sudo_is_given_all_packages_in_one_command(command, tmp_path):
    words = printed_command(dev(command, PATH=bare_machine(tmp_path)))
    assert words[:3] == ["su", "-", "-c"]
    update, install = words[3].split(" && ")
    assert update == "apt-get update"
    assert install.split()[:4] == ["apt-get", "install", "-y", "--no-install-recommends"]
    assert {"gcc", "libc6-dev", "python3", "python3-venv"} <= set(install.split()[4:])


def test_a_user_who_may_use_sudo_is_given_a_command_with_sudo(tmp_path):
    user = bare_machine(tmp_path, sudo="exit 1", id="[ $1 = -u ] && echo 1000 || echo users sudo")
    words = printed_command(dev("demo", PATH=user))
    assert words[:4] == ["sudo", "apt-get", "update", "&&"]
    assert words[4:9] == ["sudo", "apt-get", "install", "-y", "--no-install-recommends"]


def commands() -> list[str]:
    return re.findall(r"(?m)^  ([a-z-]+)\b", dev("help").stdout)


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_every_command_explains_itself_on_a_machine_with_nothing(word, tmp_path):
    path = bare_machine(tmp_path)
    for command in sorted(set(commands())):
        result = dev(command, word, PATH=path)
        assert (result.returncode, result.stderr) == (0, ""), command
        assert result.stdout.startswith("usage: ./dev")


@pytest.mark.parametrize(
    "arguments, program",
    [
        (["demo"], "chat/app"),
        (["demo", "sentences"], "sentence_similarity/demo"),
        (["demo", "train"], "train/app"),
    ],
)
def test_the_options_of_the_demos_are_explained(arguments, program):
    source = (ROOT / f"examples/{program}.py").read_text()
    options = re.findall(r'add_argument\(\s*"(--[a-z]+)"', source)
    explained = re.findall(r"(?m)^  (--[a-z]+)", dev(*arguments, "--help").stdout)
    assert options == explained != []


def test_the_manifest_asks_for_python(tmp_path):
    assert "python3" in printed_command(dev("manifest", PATH=bare_machine(tmp_path)))[3]


def test_caches_lie_in_build(tmp_path):
    (tmp_path / "module.py").write_text("x = 1\n")
    program = "import module, hypothesis as h; h.given(h.strategies.integers())(lambda x: None)()"
    script = f'''
        cd "$1"; export HOME=$1; . {ROOT}/tools/caches.sh
        "$2" -c "$3"; "$2" -m ruff check --quiet .; "$2" -m pip cache dir; "$2" -c "
try:
    import matplotlib.pyplot
except ImportError:
    pass"'''
    command = ["bash", "-euc", script, "bash", tmp_path, sys.executable, program]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(command, check=True, env=environment)
    assert {path.name for path in tmp_path.iterdir()} == {"module.py", "build"}


@pytest.mark.parametrize(
    "arguments, chosen",
    [
        (["demo"], "chat"),
        (["demo", "Why?", "--tokens", "9"], "chat Why? --tokens 9"),
        (["demo", "sentences", "--repeats", "1"], "sentence_similarity --repeats 1"),
        (["demo", "train", "--steps", "9"], "train --steps 9"),
    ],
)
def test_the_demo_is_chosen_by_its_first_argument(arguments, chosen):
    script = f'. {ROOT}/tools/build.sh; set_up_demo() {{ echo "$@"; exit; }}; "$@"'
    command = ["bash", "-euc", script, "bash", *arguments]
    assert subprocess.run(command, capture_output=True, text=True).stdout == f"{chosen}\n"


def test_a_demo_without_torch_is_refused_before_the_library_is_built(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError")
    script = f'. {ROOT}/tools/build.sh; set_up_demo() {{ PYTHON={sys.executable}; }}; "$@"'
    script = f'give_up() {{ echo "$1" >&2; exit 2; }}; {script}'
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = ["bash", "-euc", script, "bash", "demo", "train"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 2
    message = f"demo train needs torch: {sys.executable} -m pip install torch\n"
    assert result.stderr == message


def test_what_is_missing_is_said_without_the_usage():
    script = (ROOT / "dev").read_text()
    start = script.index("give_up() {")
    function = script[start : script.index("\n}\n", start) + 3]
    result = subprocess.run(
        ["bash", "-euc", f'{function} give_up "it needs torch"'], capture_output=True, text=True
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "./dev: it needs torch\n"


def test_the_demo_sees_the_torch_of_the_systems_python(tmp_path):
    """And that of its own environment first."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "torch.py").write_text("NAME = 'lent'")
    python3 = tmp_path / "python3"
    python3.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} "$@"\n')
    python3.chmod(0o755)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    venv = tmp_path / "venv/bin/python"
    script = f"set -eu; . {ROOT}/tools/setup.sh; PYTHON={venv}; lend_torch"
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run(["bash", "-c", script], env={**os.environ, "PATH": path}, check=True)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [venv, "-c", "import torch; print(torch.NAME)"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.stdout == "lent\n", result.stderr


def test_the_test_asks_for_what_the_debian_packages_are_made_with(tmp_path):
    words = printed_command(dev("test", PATH=bare_machine(tmp_path)))
    assert {"dpkg-dev", "file"} <= set(words[3].split())


def in_bash(script: str, *arguments: str) -> str:
    """Returns what a script prints that has the parts of ./dev at hand."""
    command = ["bash", "-euc", f"cd {ROOT}; {script}", "bash", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout


def test_the_costs_of_all_steps_are_printed_the_dearest_first():
    script = ". tools/progress.sh; COSTS=('12 5 Debian packages' '300 2000 cuda'); print_costs"
    assert [line.split() for line in in_bash(script).splitlines()] == [
        ["processor", "wall"],
        ["30.0", "s", "200.0", "s", "cuda"],
        ["1.2", "s", "0.5", "s", "Debian", "packages"],
    ]


def test_a_long_step_shows_how_far_its_build_is(tmp_path):
    log = tmp_path / "build.log"
    script = """. tools/progress.sh; RUNS[$1]="none $SECONDS [ 3/24] build"
                describe_run "$1"; RUNS=()  # nothing runs that the end of the script would end"""
    log.write_text("-- Configuring done\n")
    assert "[ 3/24] build  0:00  log:" in in_bash(script, str(log))
    log.write_text("[1/93] Building a\n[2/93] Building b\nnote: of [7/8]\n")
    assert "[ 3/24] build  0:00  [2/93]  log:" in in_bash(script, str(log))


STEPS_OF_A_TEST = """
. tools/progress.sh; . tools/test.sh
LOGS=$1/log STEPS='
a - -
b a -
c - -
d b,c -
'
meet() {  # waits until the other step is there too
    touch "$LOGS/$1.met"
    until [ -e "$LOGS/$2.met" ]; do sleep 0.01; done
}
note() { echo "$1" >>"$LOGS/order"; }
step_a() { meet a c; note a; }
step_b() { note b; ${FAILS:-true}; note after; }
step_c() { meet c a; until grep -q b "$LOGS/order"; do sleep 0.01; done; note c; }
step_d() { note d; }
mkdir "$LOGS"
select_steps d
run_steps
"""


def run_of_steps(folder: Path, **environment: str) -> tuple[list[str], list[str]]:
    """Returns what steps printed where ./dev does, and what they noted in the order of time."""
    done = subprocess.run(
        ["bash", "-euc", f"cd {ROOT}; {STEPS_OF_A_TEST}", "bash", folder],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    ended = re.findall(r"(?m)^\[ \d/4\] (\w  (?:ok|FAILED)) ", done.stdout)
    return ended, (folder / "log/order").read_text().split()


def test_steps_run_side_by_side_and_after_those_that_they_need(tmp_path):
    """The first two wait for each other; the third runs while one of them does."""
    ended, order = run_of_steps(tmp_path)
    assert order == ["a", "b", "after", "c", "d"]
    assert sorted(ended) == ["a  ok", "b  ok", "c  ok", "d  ok"]


def test_a_step_whose_need_failed_does_not_run(tmp_path):
    ended, order = run_of_steps(tmp_path, FAILS="false")
    assert order == ["a", "b", "c"]
    assert sorted(ended) == ["a  ok", "b  FAILED", "c  ok", "d  FAILED"]


def test_what_runs_ends_with_the_script(tmp_path):
    """An interruption reaches the programs that a step started, too."""
    script = f"""
        cd {ROOT}; . tools/progress.sh; LOGS=$1
        runs_long() {{ sleep 3600 & echo $! >$LOGS/pid.new; mv $LOGS/pid.new $LOGS/pid; wait; }}
        run_logged long $LOGS/long.log runs_long"""
    with subprocess.Popen(["bash", "-euc", script, "bash", tmp_path]) as dev_:
        pid = tmp_path / "pid"
        while not pid.exists():
            time.sleep(0.01)
        dev_.terminate()
        assert dev_.wait() == 143
    sleeper = Path("/proc", pid.read_text().strip(), "status")
    while sleeper.exists() and "State:\tZ" not in sleeper.read_text():
        time.sleep(0.01)


def test_the_cost_of_a_build_is_summed_by_family(tmp_path):
    times = tmp_path / "times"
    kernel = "CMakeFiles/flashattn_objects.dir/generated/kernels/flash_fwd_{}_dany_1x1.c.o"
    rows = [("0.5 0.5", "build/yardstick.o"), ("1 0.5", "src/core/status.c.o")]
    rows += [("7 1", kernel.format("avx2_fp16")), ("8 1", kernel.format("avx2_fp32"))]
    cuda = "CMakeFiles/flashattn_{0}.dir/{1}.cu.o"
    rows += [("60 4", cuda.format("sm90_mla", "grouped/sm90_mla/sm90mla_bf16_d576v512"))]
    rows += [("20 1", cuda.format("sm90_mla", "grouped/sm90_mla/sm90mla_fp16_d576v512"))]
    rows += [("2 0.5", cuda.format("common", "kernels/common/append"))]
    times.write_text("".join(f"{time} {name}\n" for time, name in rows))
    assert in_bash('. tools/cost.sh; report_times "$1"', str(times)).splitlines() == [
        "    85.0 s     2 files  kernels of SM90MLA",
        "    17.0 s     2 files  kernels of AVX2",
        "     2.5 s     1 files  the other CUDA files",
        "     1.5 s     1 files  the rest",
        "   106.0 s     6 files  in all, 1.8 minutes: 106 times the 1.00 s of a file that never "
        "changes",
    ]


def test_a_compilation_is_noted_with_its_time_and_fails_as_without(tmp_path):
    program, notes = ROOT / "tools/timed.sh", tmp_path / "notes"
    source, result = tmp_path / "a.c", tmp_path / "a%.o"
    source.write_text("int a;\n")
    compiled = [program, notes, "cc", "-c", source, "-o", result]
    assert subprocess.run(compiled).returncode == 0 and result.exists()
    assert re.fullmatch(rf"[\d.]+ [\d.]+ {result}\n", notes.read_text())
    source.write_text("wrong\n")
    failed = subprocess.run(compiled, capture_output=True, text=True)
    assert failed.returncode != 0 and "a.c:1:1: error" in failed.stderr
    assert failed.stderr.count("user") == 0
