"""`python examples/sentence_similarity` finds similar sentences by a real transformer, whose
attention libflashattn computes and numpy checks. This file says what must be installed.
"""

import sys
from pathlib import Path

NAME = Path(__file__).resolve().parent.name
sys.path.append(str(Path(__file__).resolve().parents[1]))

from demo_support import cure  # noqa: E402

try:
    import demo

    sys.exit(demo.main())
except ImportError as error:
    print(f"{NAME}: {error}; try: {cure(error, NAME)}", file=sys.stderr)
    sys.exit(2)
