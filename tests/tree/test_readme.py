"""What the README and its neighbours tell a user to type exists: commands, options, variables,
arguments. Pictures show the committed numbers and words, in colours that can be read.
"""

from __future__ import annotations

import inspect
import re
import runpy
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bindings/python"))
DRAWING = runpy.run_path(str(ROOT / "docs/charts/draw.py"))
DEMO = runpy.run_path(str(ROOT / "docs/demo/draw.py"))
CHARTS = {chart.name: chart for chart in DRAWING["CHARTS"]}
README = (ROOT / "README.md").read_text()
TOP_LEVEL = "\n".join(path.read_text() for path in sorted(ROOT.glob("*.md")))
LIGHT, DARK = "#ffffff", "#0d1117"  # pages on which a README is shown


def found(pattern: str, text: str = TOP_LEVEL) -> list[str]:
    names = sorted(set(re.findall(pattern, text)))
    assert names, f"nothing like {pattern}"
    return names


# ---- What a user types ----


def test_the_commands_of_dev_exist() -> None:
    usage = subprocess.run([ROOT / "dev", "help"], capture_output=True, text=True).stdout
    commands = found(r"(?m)^  ([a-z-]+)\b", usage)
    assert [name for name in found(r"\./dev ([a-z-]+)") if name not in commands] == []


def test_the_steps_of_the_test_exist() -> None:
    listing = subprocess.run([ROOT / "dev", "test", "--list"], capture_output=True, text=True)
    steps = found(r"(?m)^  ([a-z0-9-]+) ", listing.stdout)
    assert f"{len(steps)} steps" in TOP_LEVEL


def test_the_commands_of_the_package_exist() -> None:
    source = "".join(p.read_text() for p in (ROOT / "bindings/python/flashattn/cli").glob("*.py"))
    commands = found(r'add_parser\(\s*"([a-z-]+)"', source)
    guide = (ROOT / "docs/guides/python.md").read_text()
    named = found(r"(?m)^    flashattn ([a-z][a-z-]+)", guide)
    assert len(named) > 5 and [name for name in named if name not in commands] == []


def test_the_options_of_cmake_exist() -> None:
    options = found(r"(?:set|option)\((FLASH_[A-Z_]+)", (ROOT / "CMakeLists.txt").read_text())
    page = (ROOT / "docs/install.md").read_text()
    table = page.split("| CMake option |")[1].split("## ")[0]
    used = found(r"-D(FLASH_[A-Z_]+)", TOP_LEVEL + page)
    named = [*used, *found(r"\| `(FLASH_[A-Z_]+)=", table)]
    assert [name for name in named if name not in options] == []


def test_the_variables_are_those_of_the_header() -> None:
    header = (ROOT / "include/flashattn.h").read_text()
    listed = found(r"(?m)^ \*   (FLASHATTN_[A-Z_]+) ", header)
    page = (ROOT / "docs/environment.md").read_text()
    assert found(r"\| `(FLASHATTN_[A-Z_]+)", page) == sorted(
        [*listed, "FLASHATTN_EXTENSION", "FLASHATTN_LIBRARY", "FLASHATTN_VLLM"]
    )


# ---- Coming from flash-attn ----


def test_arguments_named_beside_those_of_flash_attn_exist() -> None:
    import flashattn

    arguments = {
        name
        for function in (flashattn.flash_attn_func, flashattn.flash_attn_varlen_func)
        for name in inspect.signature(function).parameters
    }
    page = (ROOT / "docs/compat.md").read_text()
    section = page.split("## Arguments of the functions for all arrays")[1].split("```")[0]
    rows = re.findall(r"^\| (.*) \| (.*) \|$", section, re.MULTILINE)
    same = [left for left, right in rows if right.startswith("the same")]
    other = [right.split(":")[0].split(";")[0] for _, right in rows if right.startswith("`")]
    names = found(r"`([a-z_]+)", "\n".join(same + other))
    assert [name for name in names if name not in arguments] == []


# ---- The first screens ----


def test_the_readme_is_short() -> None:
    assert README.count("\n") <= 200


RESULT = re.compile(r"(?m)^\|.*\| ([\d.]+) (?:[GT]FLOP/s|us|ms) \| ([\d.]+), .* \| ([\d.]+) \|$")
RESULTS = RESULT.findall(README)


def half_a_digit(number: str) -> float:
    """Returns how far a number may be from what it was rounded from."""
    return 0.5 * 10 ** -len(number.partition(".")[2])


@pytest.mark.parametrize("ours, theirs, ratio", RESULTS)
def test_a_ratio_is_that_of_its_figures(ours: str, theirs: str, ratio: str) -> None:
    """Of rates the ratio is ours / theirs, of times theirs / ours."""
    numbers = [(float(number), half_a_digit(number)) for number in (ours, theirs)]
    for (a, off_a), (b, off_b) in (numbers, numbers[::-1]):
        low, high = (a - off_a) / (b + off_b), (a + off_a) / (b - off_b)
        if low - half_a_digit(ratio) <= float(ratio) <= high + half_a_digit(ratio):
            return
    pytest.fail(f"{ours} and {theirs} are not {ratio} apart")


def test_the_results_are_those_of_the_page_about_performance() -> None:
    page = (ROOT / "docs/performance.md").read_text()
    figures = [float(number) for number in re.findall(r"(?<![\d.])\d+(?:\.\d+)?", page)]
    assert len(RESULTS) == 5
    for ours, _, _ in RESULTS:
        assert any(abs(figure - float(ours)) <= half_a_digit(ours) for figure in figures), ours


# ---- The charts ----


@pytest.mark.parametrize("chart", CHARTS.values(), ids=CHARTS)
def test_a_chart_is_drawn_from_its_table(chart: object) -> None:
    assert chart.picture.read_text() == DRAWING["draw"](chart), "run python docs/charts/draw.py"


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_the_numbers_of_the_library_are_those_of_the_documents(mask: str) -> None:
    numbers = DRAWING["read_table"](CHARTS["prefill_h200"])[mask][DRAWING["OWN"]].values()
    line = r"[^\n]*\b".join(f"{number:.0f}" for number in numbers)
    assert re.search(rf"\b{line}\b", (ROOT / "docs/performance.md").read_text())


def luminance(color: str) -> float:
    """Returns the luminance of sRGB, as WCAG 2 defines it."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    dark, light = sorted(luminance(color) for color in (first, second))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("page", [LIGHT, DARK])
def test_the_charts_can_be_read_on_a_light_and_on_a_dark_page(page: str) -> None:
    colors = [DRAWING["TEXT"], *DRAWING["COLORS"].values()]
    assert [color for color in colors if contrast(color, page) < 3.5] == []


# ---- The picture of the demo ----


def test_the_picture_of_the_demo_is_drawn_from_its_record() -> None:
    drawn = DEMO["draw"](DEMO["RECORD"].read_text())
    assert DEMO["PICTURE"].read_text() == drawn, "run python docs/demo/draw.py"


def test_the_picture_of_the_demo_has_every_word_of_its_record() -> None:
    picture = xml.etree.ElementTree.parse(DEMO["PICTURE"]).getroot()
    shown = [text.text or "" for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    record = DEMO["RECORD"].read_text()
    assert " ".join(shown).split() == f"$ ./dev demo {record}".split()
    assert "\nOK: " in record and "docs/demo/chat.svg" in README


def test_the_picture_of_the_demo_can_be_read() -> None:
    colors = DEMO["COLORS"]
    assert [color for color in colors if contrast(color, DEMO["BACKGROUND"]) < 4.5] == []
    assert all(contrast(DEMO["EDGE"], page) > 3.5 for page in (LIGHT, DARK))
