"""Puts the chat's package on the path. Its tests, and those beside it, run where what it imports is
installed."""

import sys
from importlib.util import find_spec

from program import EXAMPLES

sys.path.insert(0, str(EXAMPLES))
collect_ignore_glob = [] if find_spec("tokenizers") else ["test_chat*.py", "test_engine.py"]
