"""Results of the benchmarks as JSON: {"title": ..., "date": ..., "rows": [...]}."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write(path: str, title: str, rows: Iterable[dict[str, Any]]) -> None:
    """Raises OSError."""
    results = {"title": title, "date": time.strftime("%Y-%m-%d"), "rows": list(rows)}
    Path(path).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
