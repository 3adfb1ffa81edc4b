"""Which folders may include which: the table of docs/architecture.md, without circles."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PUBLIC = r"flashattn\.h"
GENERATED = r"config_facts\.h"
COMMON = rf"common/\w+\.h|{PUBLIC}"
# What the CUDA families share, also device code.
DEVICE_COMMON = rf"{COMMON}|common/(\w+/)?\w+\.cuh"
# What src/ may include of kernels: what all share, the call of a family's kernels, and functions
# for whole calls.
KERNEL_INTERFACES = (
    r"kernels/(common/\w+|\w+/(\w+_kernel|\w*combine\w*|append_row|quantise_rows|row_sum|tuning"
    r"|family))\.h"
)

# The folders of src/ from the bottom up. A folder may include itself and those below it. Folders of
# one floor may not include each other.
FLOORS = (("core",), ("config", "arguments"), ("select",), ("cpu", "cuda"), ("api",))

# The folders of src/cuda, with the others that each may include. All may include cuda/family.h and
# cuda/tuning.h.
CUDA_FOLDERS = {
    "runtime": (),
    "backward": ("runtime",),
    "tma": ("runtime",),
    "sm80": ("runtime",),
    "sm90": ("runtime", "tma", "backward"),
    "decode": ("runtime", "tma", "sm90"),
}

# The folders of kernels/sm90. All may include what lies in none of them, and load/ also the
# schedule's interface.
SM90_SHARED = (
    r"sm90/(sm90_kernel\.h|(derive|tile|tile_rows|fragments|block_state|shown_blocks)\.cuh)"
)
SM90_SCHEDULE = r"sm90/schedule/schedule\.cuh"


def sm90_folder(*folders: str) -> str:
    """Returns what the first of the folders may include: itself and the others."""
    return rf"{DEVICE_COMMON}|{SM90_SHARED}|sm90/({'|'.join(folders)})/\w+\.cuh"


# The quoted includes that the files of a folder may have; the first folder that fits a path counts.
# A plain name is in the same folder.
KERNEL_RULES = {
    "include": r"(?!)",
    "kernels/common": DEVICE_COMMON,
    "kernels/cpu": rf"{COMMON}|{GENERATED}|cpu/(\w+/)?\w+\.h",
    "kernels/sm80/ptx": rf"{DEVICE_COMMON}|sm80/ptx/\w+\.cuh",
    "kernels/sm80/forward": rf"{DEVICE_COMMON}|sm80/(sm80_kernel|tile_order)\.h"
    r"|sm80/(forward|ptx)/\w+\.cuh",
    "kernels/sm80/backward": rf"{DEVICE_COMMON}|sm80/(backward_kernel|tile_order)\.h"
    r"|sm80/(backward|ptx)/\w+\.cuh",
    "kernels/sm80/decode": rf"{DEVICE_COMMON}|sm80/decode_\w+\.h|sm80/(decode|ptx)/\w+\.cuh",
    "kernels/sm80/mla": rf"{DEVICE_COMMON}|sm80/mla_kernel\.h|sm80/(mla|ptx)/\w+\.cuh",
    "kernels/sm80/wide": rf"{DEVICE_COMMON}|sm80/mla_kernel\.h|sm80/(mla|wide|ptx)/\w+\.cuh",
    "kernels/sm80": rf"{DEVICE_COMMON}|sm80/(\w+/)?\w+\.(h|cuh)",
    "kernels/sm90/ptx": rf"{DEVICE_COMMON}|sm90/sm90_kernel\.h|sm90/ptx/\w+\.cuh",
    "kernels/sm90/schedule": sm90_folder("schedule", "ptx"),
    "kernels/sm90/load": rf"{sm90_folder('load', 'ptx')}|{SM90_SCHEDULE}",
    "kernels/sm90/softmax": sm90_folder("softmax", "ptx"),
    "kernels/sm90/fp8": sm90_folder("fp8", "softmax", "ptx"),
    "kernels/sm90/mma": sm90_folder("mma", "fp8", "softmax", "ptx"),
    "kernels/sm90/store": sm90_folder("store", "mma", "softmax", "ptx"),
    # SM90_DECODE may include what knows nothing of tiles and schedules from the other folders.
    "kernels/sm90/decode": rf"{sm90_folder('decode', 'mma', 'fp8', 'softmax', 'ptx')}"
    r"|sm90/(decode_kernel\.h|load/(kv|pages|page_boxes|rows|convert_block|convert_q_chunk)\.cuh)",
    "kernels/sm90/halves": rf"{sm90_folder('halves', 'decode', 'mma', 'softmax', 'ptx')}"
    r"|sm90/(halves_kernel\.h|load/convert_block\.cuh)",
    # Gradients may include what knows nothing of the forward pass's tiles.
    "kernels/sm90/backward": rf"{sm90_folder('backward', 'ptx')}|sm90/backward_kernel\.h"
    r"|sm90/mma/products\.cuh",
    # These put the folders together; block_state.cuh gives the schedule's state its memory.
    "kernels/sm90": rf"{DEVICE_COMMON}|{SM90_SCHEDULE}|sm90/schedule/state\.cuh"
    r"|sm90/((load|mma|fp8|softmax|store|decode|halves|backward|ptx)/)?\w+\.(h|cuh)",
    "examples/paged_decode": rf"{PUBLIC}|(machine|cache)\.h",
    "examples/engine": rf"{PUBLIC}|\w+\.h",
    "examples": PUBLIC,
}
OF_SRC = rf"{PUBLIC}|{GENERATED}|{KERNEL_INTERFACES}"
SUFFIXES = {".c", ".h", ".cu", ".cuh"}


def folder_rules() -> dict[str, str]:
    rules = {}
    below: list[str] = []
    for floor in FLOORS:
        for folder in floor:
            shared = rf"({'|'.join(below) or '(?!)'})/(\w+/)?\w+\.h|{OF_SRC}"
            if folder == "cuda":
                rules |= cuda_rules(shared)
            rules[f"src/{folder}"] = rf"{folder}/(\w+/)?\w+\.h|{shared}"
        below += floor
    return rules


def cuda_rules(shared: str) -> dict[str, str]:
    """Returns the rules of the folders of src/cuda; all of them may include `shared`."""
    return {
        f"src/cuda/{name}": rf"cuda/(family|tuning|({'|'.join([name, *others])})/\w+)\.h|{shared}"
        for name, others in CUDA_FOLDERS.items()
    }


# The handlers for XLA are a caller of the library, but for its messages. XLA's own header, in
# src/xla/vendor, is another project's.
RULES = {
    **KERNEL_RULES,
    **folder_rules(),
    "src/xla": rf"xla/\w+\.h|core/status\.h|{PUBLIC}",
}


def sources(*folders: str) -> list[Path]:
    found = [ROOT / folder for folder in folders or RULES if (ROOT / folder).exists()]
    files = {p for folder in found for p in folder.rglob("*") if p.suffix in SUFFIXES}
    files = {p for p in files if "vendor" not in p.parts}
    assert len(files) > 20
    return sorted(files)


def rule_of(path: str) -> str:
    folder = next(folder for folder in RULES if path.startswith(f"{folder}/"))
    return RULES[folder]


def included(text: str) -> list[str]:
    return re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, flags=re.MULTILINE)


def violations(path: str, text: str) -> list[str]:
    return [name for name in included(text) if not re.fullmatch(rule_of(path), name)]


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_includes_follow_the_rule(path: Path) -> None:
    assert violations(path.relative_to(ROOT).as_posix(), path.read_text()) == []


def test_every_file_of_src_is_in_a_ruled_folder() -> None:
    strays = [p for p in (ROOT / "src").iterdir() if p.suffix in SUFFIXES]
    assert strays == []


def folders_without_a_rule(root: Path) -> list[str]:
    """Returns folders of families, of src and of SM80 or SM90 that no rule would check."""
    parents = [root / parent for parent in ("kernels", "kernels/sm80", "kernels/sm90", "src")]
    folders = [folder for parent in parents for folder in parent.iterdir()]
    names = [f.relative_to(root).as_posix() for f in folders if f.is_dir()]
    return sorted(name for name in names if name not in RULES)


def test_every_folder_has_a_rule() -> None:
    assert folders_without_a_rule(ROOT) == []


def test_a_folder_without_a_rule_is_found(tmp_path: Path) -> None:
    names = ("sm80/decode", "sm80/verify", "sm90/mma", "sm90/verify", "sm100/ptx")
    for folder in (*(f"kernels/{name}" for name in names), "src/api"):
        (tmp_path / folder).mkdir(parents=True)
    strays = ["kernels/sm100", "kernels/sm80/verify", "kernels/sm90/verify"]
    assert folders_without_a_rule(tmp_path) == strays


@pytest.mark.parametrize(
    ("path", "include"),
    [
        ("kernels/cpu/x.h", "core/status.h"),
        ("kernels/cpu/x.h", "sm80/forward/tile.cuh"),
        ("kernels/sm80/x.cuh", "cpu/rows.h"),
        ("kernels/sm80/x.cuh", "sm90/tile.cuh"),
        ("kernels/sm80/decode/x.cuh", "sm80/forward/tile.cuh"),
        ("kernels/sm80/decode/x.cuh", "sm80/sm80_kernel.h"),
        ("kernels/sm80/forward/x.cuh", "sm80/decode/piece.cuh"),
        ("kernels/sm80/ptx/x.cuh", "sm80/decode/derive.cuh"),
        ("kernels/sm90/x.cuh", "sm80/forward/tile.cuh"),
        ("kernels/sm90/x.cuh", "sm90/schedule/ragged.cuh"),
        ("kernels/sm90/load/x.cuh", "sm90/schedule/ranks.cuh"),
        ("kernels/sm90/load/x.cuh", "sm90/mma/products.cuh"),
        ("kernels/sm90/schedule/x.cuh", "sm90/load/kv.cuh"),
        ("kernels/sm90/softmax/x.cuh", "sm90/mma/products.cuh"),
        ("kernels/sm90/mma/x.cuh", "sm90/store/direct.cuh"),
        ("kernels/sm90/ptx/x.cuh", "sm90/tile.cuh"),
        ("kernels/common/x.h", "cpu/rows.h"),
        ("src/cpu/x.c", "kernels/cpu/rows.h"),
        ("src/cuda/x.c", "kernels/sm80/forward/mainloop.cuh"),
        ("src/cuda/x.c", "kernels/sm90/forward.cuh"),
        ("src/core/x.c", "config/config.h"),
        ("src/config/x.c", "arguments/forward.h"),
        ("src/arguments/x.c", "select/select.h"),
        ("src/select/x.c", "cpu/plan.h"),
        ("src/cpu/x.c", "cuda/runtime/scope.h"),
        ("src/cuda/x.h", "api/resolve.h"),
        ("src/cuda/runtime/x.h", "cuda/decode/plan_decode.h"),
        ("src/cuda/tma/x.c", "cuda/sm90/schedule_sm90.h"),
        ("src/cuda/sm80/x.c", "cuda/tma/tensor_map.h"),
        ("src/cuda/sm90/x.c", "cuda/decode/plan_decode.h"),
        ("src/xla/x.c", "arguments/forward.h"),
        ("src/api/x.c", "xla/call.h"),
        ("include/flashattn.h", "config/config.h"),
        ("examples/x.c", "config/config.h"),
    ],
)
def test_the_rule_refuses(path: str, include: str) -> None:
    assert violations(path, f'#include "{include}"\n') == [include]


# ---- Code that is the same on every device ----


def reached(name: str) -> set[str]:
    """Returns a header of kernels/ and all that it includes, by paths from there."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        path = waiting.pop()
        if path not in found and (ROOT / "kernels" / path).exists():
            found.add(path)
            waiting += included((ROOT / "kernels" / path).read_text())
    return found


def test_kernels_of_one_source_test_no_compute_capability_that_pays() -> None:
    """SM80's rows of 16 bits become code for 9.0 from PTX for 8.0 (codegen/machine_code.py).
    Conversion of e4m3 is not for them, and bf16 becomes fp32 by one instruction on either."""
    texts = {path: (ROOT / "kernels" / path).read_text() for path in reached("sm80/forward.cuh")}
    assert len(texts) > 20
    testing = {path for path, text in texts.items() if re.search(r"__CUDA_ARCH__ [<>=]", text)}
    assert testing == {"common/ptx/e4m3.cuh", "common/ptx/element.cuh"}


# ---- Circles ----


@cache
def units(folder: str) -> dict[str, set[str]]:
    """Returns each header with its source as a unit, and the units whose headers it includes."""
    files = {p.relative_to(ROOT / folder).as_posix(): p for p in sources(folder)}
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        unit = name.rsplit(".", 1)[0]
        own = {i.rsplit(".", 1)[0] for i in included(path.read_text()) if i in files}
        graph.setdefault(unit, set()).update(own - {unit})
    return graph


def find_circle(graph: dict[str, set[str]]) -> list[str]:
    """Returns the units of a circle, in order; [] if there is none."""
    done: set[str] = set()

    def walk(unit: str, trail: list[str]) -> list[str]:
        if unit in trail:
            return trail[trail.index(unit) :]
        if unit not in done:
            for other in sorted(graph.get(unit, ())):
                circle = walk(other, [*trail, unit])
                if circle:
                    return circle
            done.add(unit)
        return []

    return next((circle for unit in sorted(graph) if (circle := walk(unit, []))), [])


@pytest.mark.parametrize("folder", ["src", "kernels"])
def test_files_include_each_other_in_no_circle(folder: str) -> None:
    assert find_circle(units(folder)) == []


def test_a_circle_is_found() -> None:
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert find_circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_a_name_below_src_is_none_below_kernels() -> None:
    """Includes are searched for in both."""
    assert not units("src").keys() & units("kernels").keys()


def functions(text: str) -> set[str]:
    """Returns names of functions that a header declares without defining them."""
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    declaration = r"^(?!static|typedef)\w[\w *]*?\b(\w+)\([^;{]*\)(?:\s*__\w+.*?)?;"
    return set(re.findall(declaration, code, re.MULTILINE))


def test_a_function_is_defined_beside_its_header() -> None:
    """A .h and the .c of the same name belong together."""
    stray = {}
    for header in (path for path in sources("src") if path.suffix == ".h"):
        source = header.with_suffix(".c")
        declared = functions(header.read_text())
        text = source.read_text() if source.exists() else ""
        missing = {name for name in declared if not re.search(rf"\b{name}\(", text)}
        if missing:
            stray[header.relative_to(ROOT).as_posix()] = missing
    assert stray == {}


# ---- Families ----

FAMILY_FILES = re.compile(
    r"src/cpu/family\.c|src/cuda/sm\d+/sm\d+\.c|src/config/(config|family|format|parse)\.c"
)


def test_nobody_but_a_family_asks_which_family_it_is() -> None:
    asks = re.compile(r"\barch\s*(==|!=|<|>)|case FLASH_ARCH_\w")
    for path in sources("src"):
        name = path.relative_to(ROOT).as_posix()
        if not FAMILY_FILES.fullmatch(name):
            assert not asks.search(path.read_text()), name


# ---- Public header and generator ----


def test_the_public_header_needs_the_c_library_alone() -> None:
    header = (ROOT / "include/flashattn.h").read_text()
    assert re.findall(r"#\s*include\s*[<\"](.+?)[>\"]", header) == ["stddef.h", "stdint.h"]


def imported(path: Path) -> set[str]:
    """Returns the top-level packages that a Python file imports; its own package is ""."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("" if node.level else (node.module or "").split(".")[0])
    return names


@pytest.mark.skipif(sys.version_info < (3, 10), reason="sys.stdlib_module_names is of Python 3.10")
def test_codegen_imports_the_standard_library_alone() -> None:
    files = list((ROOT / "codegen").glob("*.py"))
    assert files
    for path in files:
        assert imported(path) <= sys.stdlib_module_names | {"", "codegen"}, path
