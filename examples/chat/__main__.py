"""`python examples/chat` answers by a small language model, whose attention libflashattn computes
and numpy checks. This file sets what must be set before it runs, and says what must be installed.
"""

import os
import sys
from pathlib import Path

NAME = Path(__file__).resolve().parent.name
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demo_support import cure  # noqa: E402

# numpy has one thread: more would spin between its products, on processors that the library's
# threads are to use.
for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

try:
    from chat import app

    sys.exit(app.main())
except ImportError as error:
    print(f"{NAME}: {error}; try: {cure(error, NAME)}", file=sys.stderr)
    sys.exit(2)
