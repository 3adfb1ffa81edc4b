"""Sphinx's configuration for the site that `./dev docs` builds: the guides as they are in the
repository, and the references of C and C++ (from doxygen's XML of the headers) and of Python (from
the docstrings; neither the library nor torch is needed).

The repository's root is the folder of sources, and README.md the first page. docs/README.md, which
lists every page, gives the navigation.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bindings/python"), str(Path(__file__).parent)]
import stand_in  # noqa: E402
from docstrings import as_rst  # noqa: E402

stand_in.install()

VERSION = re.findall(
    r"define FLASH_VERSION_[MP]\w+ (\d+)", (ROOT / "include/flashattn.h").read_text()
)

project = "libflashattn"
version = release = ".".join(VERSION)
root_doc = "README"
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/guides/*.md",
    "docs/design/*.md",
    "docs/reference/*.rst",
    "examples/README.md",
    "examples/*/README.md",
]

extensions = ["myst_parser", "breathe", "sphinx.ext.autodoc"]
default_role = "code"
highlight_language = "none"

myst_heading_anchors = 4

breathe_projects = {"libflashattn": str(ROOT / "build/docs-headers/xml")}
breathe_default_project = "libflashattn"
breathe_domain_by_extension = {"h": "c", "hpp": "cpp"}
breathe_show_include = False

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
add_module_names = False

html_theme = "furo"
html_title = f"libflashattn {release}"
html_static_path = ["static"]
html_css_files = ["wide.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False

REFERENCES = ("c", "cpp", "python", "python_torch")


def toctree(caption: str, pages: list[str]) -> str:
    return "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", *pages, "```", ""])


def pages_of(section: str) -> list[str]:
    """The pages that the table of a section of docs/README.md lists, from the root."""
    links = re.findall(r"(?m)^\| \[[^]]*\]\(([\w./-]+)\.md\)", section)
    return [f"/docs/{link}".replace("/docs/../", "/") for link in links]


def navigation() -> str:
    """The sections of docs/README.md, and what it does not list."""
    sections = re.split(r"(?m)^## ", (ROOT / "docs/README.md").read_text())[1:]
    trees = [(section.partition("\n")[0], pages_of(section)) for section in sections]
    use = trees[0][1]
    use.insert(0, "/docs/README")
    use += [
        f"/{path.parent.relative_to(ROOT)}/README" for path in ROOT.glob("examples/*/README.md")
    ]
    trees.insert(1, ("Reference", [f"/docs/reference/{page}" for page in REFERENCES]))
    trees.append(("The project", ["/CHANGELOG", "/CONTRIBUTING", "/SECURITY"]))
    return "".join(toctree(caption, pages) for caption, pages in trees)


def add_navigation(app: object, page: str, source: list[str]) -> None:
    if page == root_doc:
        source[0] += navigation()


def read_docstring(
    app: object, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    lines[:] = as_rst(lines, is_function=what in ("function", "method"))


def setup(app: object) -> None:
    app.connect("source-read", add_navigation)
    app.connect("autodoc-process-docstring", read_docstring)
