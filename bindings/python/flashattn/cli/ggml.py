"""`ggml`: builds the plug-in by which llama.cpp computes attention."""

from __future__ import annotations

import argparse

from .. import ggml


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "ggml",
        help="build the plug-in by which llama.cpp computes attention",
        description="A plug-in makes ggml, the library under llama.cpp, compute its flash "
        "attention operation by libflashattn.",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    install = actions.add_parser(
        "install",
        help="build it, and put it where flashattn.ggml.enable() finds it",
        description="Compiles the plug-in with the system's C++ compiler (or CXX) for one version "
        "of ggml: that of the installed llama-cpp-python, whose sources pip fetches, or that of "
        "--source.",
    )
    install.add_argument(
        "--source",
        metavar="FOLDER",
        help="sources of llama.cpp, whisper.cpp, stable-diffusion.cpp, llama-cpp-python or ggml",
    )
    install.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    path = ggml.install(args.source)
    print(f"plug-in     {path}")
    print("in Python   flashattn.ggml.enable(), then llama_cpp.Llama(..., flash_attn=True)")
    print(f"llama.cpp   GGML_BACKEND_PATH={path}")
    return 0
