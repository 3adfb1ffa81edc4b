"""`python -m flashattn` runs the program `flashattn`, the command line; see cli/."""

import sys

from .cli import main

sys.exit(main())
