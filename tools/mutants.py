#!/usr/bin/env python3
"""Says which single changes of the sources the tests catch: makes a number of them in a copy of the
last commit (mutants.rules has the kinds), and runs for each the tests that `./dev test --of` names
for its file, as far as this machine can run them. It takes minutes for each.

    tools/mutants.py FOLDER [--count N] [--seed N] [--seconds N] [--under FOLDER...]
    tools/mutants.py FOLDER --again RESULTS

FOLDER is where the copy, its build and the results (results.jsonl) are kept. --again makes the
changes of an earlier run's results, and names those that were caught then and are not now. It needs
universalmutator (pip install --no-deps universalmutator), which makes the changes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, replace
from io import StringIO
from itertools import islice
from pathlib import Path

from universalmutator.mutator import mutants_regexp

ROOT = Path(__file__).resolve().parents[1]
RULES = ROOT / "tools/mutants.rules"
MUTATED = ("src/", "kernels/cpu/")
INVALID, SURVIVED = "does not compile", "survived"
NO_TESTS = 5  # exit status of pytest


@dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    before: str
    after: str
    result: str = ""  # INVALID, SURVIVED, or the line of the test that failed

    @property
    def is_caught(self) -> bool:
        return self.result not in (INVALID, SURVIVED)


class Copy:
    """A copy of the last commit with a build of its own."""

    def __init__(self, folder: Path, seconds: int) -> None:
        self.sources, self.build, self.seconds = folder / "sources", folder / "build", seconds
        self.sound: set[str] = set()  # tests that are known to pass without a change
        shutil.rmtree(self.sources, ignore_errors=True)
        self.sources.mkdir(parents=True)
        archive = ["git", "-C", ROOT, "archive", "HEAD"]
        files = subprocess.run(archive, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", self.sources], input=files, check=True)
        options = ["-DFLASH_CUDA=AUTO", "-DFLASH_BUILD_TESTS=ON", "-DCMAKE_BUILD_TYPE=Release"]
        # With nvcc the table has rows of CUDA kernels, but only what runs here is compiled.
        families = ",".join(["REFERENCE", *runnable_families()])
        options.append(f"-DFLASH_COMPILED_KERNELS=ship arch={families}")
        command = ["cmake", "-S", self.sources, "-B", self.build, "-G", "Ninja", *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        if not self.compiles():
            raise SystemExit("the sources do not compile")

    def compiles(self) -> bool:
        command = ["cmake", "--build", self.build, "--parallel", "1"]
        return subprocess.run(command, capture_output=True).returncode == 0

    def compiled_files(self) -> set[str]:
        """Returns the files that the build reads, by paths from the root."""
        command = ["ninja", "-C", self.build, "-t", "deps"]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        paths = {Path(line.strip()) for line in text.splitlines() if line.startswith(" ")}
        own = {path for path in paths if path.is_relative_to(self.sources)}
        return {path.relative_to(self.sources).as_posix() for path in own}

    def tests_of(self, file: str) -> list[str]:
        """Returns the lines of tests_of.py for a file that need no GPU: tests in C come first."""
        command = [sys.executable, "tools/tests_of.py", file]
        done = subprocess.run(command, cwd=self.sources, capture_output=True, text=True)
        return sorted((x for x in done.stdout.splitlines() if x[:4] != "gpu "), reverse=True)

    def passes(self, line: str) -> bool:
        """Says whether a test passes in time; one of which this machine runs nothing does."""
        kind, test, *rows = line.split(" ", 2)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
        command += ["-k", *rows] if rows else []
        if kind == "unit":
            command = ["ctest", "--test-dir", str(self.build), "-R", f"^{test}$"]
        library = {"FLASHATTN_LIBRARY": str(self.build / "libflashattn.so")}
        environment = {**os.environ, **library, "PYTHONPATH": str(self.sources / "bindings/python")}
        process = subprocess.Popen(
            command, cwd=self.sources, env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            status = process.wait(self.seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return False
        return status == 0 or (kind == "python" and status == NO_TESTS)

    def failure(self, file: str) -> str | None:
        """Returns the first of a file's tests that does not pass."""
        return next((line for line in self.tests_of(file) if not self.passes(line)), None)

    @contextmanager
    def with_change(self, mutant: Mutant) -> Iterator[None]:
        path = self.sources / mutant.file
        original = path.read_text()
        lines = original.splitlines(keepends=True)
        lines[mutant.line - 1] = mutant.after + "\n"
        path.write_text("".join(lines))
        try:
            yield
        finally:
            path.write_text(original)

    def tried(self, mutant: Mutant) -> Mutant:
        with self.with_change(mutant):
            result = self.failure(mutant.file) if self.compiles() else INVALID
        if result not in (None, INVALID, *self.sound):
            if not (self.compiles() and self.passes(result)):
                raise SystemExit(f"fails without a change: {result}")
            self.sound.add(result)
        return replace(mutant, result=result or SURVIVED)

    def found_again(self, mutant: Mutant) -> Mutant | None:
        """Returns a change at the line where its text is now."""
        path = self.sources / mutant.file
        lines = path.read_text().splitlines() if path.exists() else []
        places = [i + 1 for i, line in enumerate(lines) if line == mutant.before]
        nearest = min(places, key=lambda line: abs(line - mutant.line), default=None)
        return nearest and replace(mutant, line=nearest, result="")


def runnable_families() -> list[str]:
    flags = set(re.search(r"(?m)^flags.*$", Path("/proc/cpuinfo").read_text())[0].split())
    needs = {"AVX2": "avx2", "AVX512": "avx512vl", "AVX512_BF16": "avx512_bf16", "AMX": "amx_tile"}
    return [family for family, flag in needs.items() if flag in flags]


def mutants_of(path: Path, file: str) -> list[Mutant]:
    lines = path.read_text().splitlines(keepends=True)
    with redirect_stdout(StringIO()):
        changes = mutants_regexp(lines, [str(RULES)], ignorePatterns=[])
    return [
        Mutant(file, line, lines[line - 1].rstrip("\n"), text.rstrip("\n"))
        for line, text, *_ in changes
    ]


def drawn(copy: Copy, folders: Iterable[str], seed: int) -> Iterator[Mutant]:
    """Yields changes without end: of a file after the other, in rounds."""
    rng = random.Random(seed)
    files = sorted(f for f in copy.compiled_files() if f.startswith(tuple(folders)))
    while True:
        for file in rng.sample(files, len(files)):
            changes = mutants_of(copy.sources / file, file)
            if changes and copy.tests_of(file):
                yield rng.choice(changes)


def first_valid(copy: Copy, changes: Iterable[Mutant], count: int) -> Iterator[Mutant]:
    tried = (copy.tried(mutant) for mutant in changes)
    return islice((mutant for mutant in tried if mutant.result != INVALID), count)


def again(copy: Copy, earlier: Iterable[Mutant]) -> Iterator[Mutant]:
    for before in earlier:
        mutant = copy.found_again(before)
        if mutant is None:
            print(f"gone: {before.file}: {before.before.strip()}")
            continue
        tried = copy.tried(mutant)
        if before.is_caught and not tried.is_caught:
            print("caught before, not now:")
        yield tried


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=60, help="changes that compile (60)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=900, help="for a file of tests (900)")
    parser.add_argument("--under", nargs="+", default=MUTATED, help="src/ and kernels/cpu/")
    parser.add_argument("--again", type=Path, metavar="RESULTS")
    arguments = parser.parse_args()
    earlier = []
    if arguments.again:
        earlier = [Mutant(**json.loads(line)) for line in arguments.again.read_text().splitlines()]
    copy = Copy(arguments.folder.resolve(), arguments.seconds)
    if earlier:
        found = again(copy, earlier)
    else:
        changes = drawn(copy, arguments.under, arguments.seed)
        found = first_valid(copy, changes, arguments.count)
    results = []
    with (arguments.folder / "results.jsonl").open("w") as file:
        for mutant in found:
            results.append(mutant)
            place = f"{mutant.file}:{mutant.line}"
            print(f"{mutant.result}: {place}: {mutant.after.strip()}", flush=True)
            file.write(json.dumps(asdict(mutant)) + "\n")
            file.flush()
    print(f"{sum(m.is_caught for m in results)} of {len(results)} changes are caught")
    return 0


if __name__ == "__main__":
    sys.exit(main())
