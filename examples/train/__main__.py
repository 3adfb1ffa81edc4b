"""`python examples/train` trains a small GPT with torch on the source of Python's own library, by
libflashattn's attention and beside it by torch's. This file sets what must be set before it runs,
and says what must be installed.
"""

import os
import sys
from pathlib import Path

NAME = Path(__file__).resolve().parent.name
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demo_support import cure  # noqa: E402

# torch's threads sleep between their products: else they would spin, on processors that the
# library's threads are to use.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

try:
    from train import app

    sys.exit(app.main())
except ImportError as error:
    todo = "pip install torch" if error.name == "torch" else cure(error, NAME)
    print(f"{NAME}: {error}; try: {todo}", file=sys.stderr)
    sys.exit(2)
