"""python examples/chat: an answer of a small language model, its attention computed by libflashattn
and compared with numpy's. Here: what must be installed for it to run.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

# numpy has one thread: others of its would spin between its products, on processors that the
# library's threads are to use.
for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")


def cure(error: ImportError) -> str:
    if error.name in (None, "flashattn"):  # None: the package is there, its library is not
        return f"pip install {HERE.parents[1]}"
    return f"pip install --no-deps -r {HERE / 'requirements.txt'}"


try:
    from chat import app

    sys.exit(app.main())
except ImportError as error:
    print(f"chat: {error}; try: {cure(error)}", file=sys.stderr)
    sys.exit(2)
