"""python examples/sentence_similarity: sentence similarities by a real transformer, its attention
computed by libflashattn and compared with numpy's. Here: what must be installed for it to run.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def cure(error: ImportError) -> str:
    if error.name in (None, "flashattn"):  # None: the package is there, its library is not
        return f"pip install {HERE.parents[1]}"
    return f"pip install --no-deps -r {HERE / 'requirements.txt'}"


try:
    import demo

    sys.exit(demo.main())
except ImportError as error:
    print(f"sentence_similarity: {error}; try: {cure(error)}", file=sys.stderr)
    sys.exit(2)
