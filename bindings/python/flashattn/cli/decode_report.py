"""What `bench-decode` shows of its times: a table, records, and the panels of a picture."""

from __future__ import annotations

from typing import Any

from . import extras, mixes, plot, timing
from .decode_times import OWN, PEERS, Row
from .ragged import RaggedBatch
from .serving_calls import Heads

_FLOOR = "reading alone"


def table(rows: list[Row], title: str) -> Any:
    table = extras.load("rich.table").Table(title=title)
    peers = [name for name in PEERS if any(name in row.seconds for row in rows)]
    has_floor = any(row.floor for row in rows)
    table.add_column("batch x keys", overflow="fold")
    floor_columns = ("floor us", "x floor") if has_floor else ()
    best = ("x best peer",) if peers else ()
    peer_columns = [f"{name} us" for name in peers]
    for column in ("cache", "us", "GB/s", *floor_columns, *peer_columns, *best):
        table.add_column(column, justify="right")
    for row in rows:
        cells = [_name(row.batch), row.cache, *_own_cells(row)]
        if has_floor:
            cells += [_microseconds(row.floor), _ratio(row.seconds.get(OWN), row.floor)]
        cells += [_microseconds(row.seconds.get(name)) for name in peers]
        if peers:
            cells.append(_ratio(row.best_peer, row.seconds.get(OWN)))
        table.add_row(*cells)
    return table


def _name(batch: RaggedBatch) -> str:
    written = mixes.NAMED.get(batch.name)
    return f"{batch.name}: {written}" if written else batch.name


def _own_cells(row: Row) -> tuple[str, str]:
    own = row.seconds.get(OWN)
    return ("none serves", "") if own is None else (_microseconds(own), f"{_rate(row, own):.0f}")


def _microseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:.1f}"


def _ratio(a: float | None, b: float | None) -> str:
    return "" if a is None or b is None else f"{a / b:.3f}"


def _rate(row: Row, seconds: float) -> float:
    return row.n_bytes / seconds / 1e9


def record(row: Row) -> dict[str, Any]:
    return {
        "batch": row.batch.name,
        "sequences": len(row.batch.lengths_k),
        "keys": sum(row.batch.lengths_k),
        "queries": sum(row.batch.lengths_q),
        "heads": row.heads.n_heads,
        "heads_kv": row.heads.n_heads_kv,
        "cache": row.cache,
        "bytes": row.n_bytes,
        "seconds": row.seconds,
        "floor_seconds": row.floor,
    }


def panels(rows: list[Row], heads: list[Heads]) -> list[plot.Panel]:
    """A panel for each size of batch, with a line for each kind of cache and each peer's."""
    rows = [row for row in rows if mixes.is_uniform(row.batch)]
    groups: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (heads.index(row.heads), len(row.batch.lengths_k))):
        name = f"batch {len(row.batch.lengths_k)}"
        name += f", heads {row.heads}" if len(heads) > 1 else ""
        groups.setdefault(name, []).append(row)
    return [plot.Panel(name, _lines(group)) for name, group in groups.items()]


def _lines(rows: list[Row]) -> list[plot.Line]:
    rows = sorted(rows, key=lambda row: row.batch.lengths_k[0])
    points: dict[tuple[str, str, bool], list[tuple[int, float]]] = {}
    for row in rows:
        keys = row.batch.lengths_k[0]
        for whose, seconds in row.seconds.items():
            name = timing.OWN if whose == OWN else whose
            line = (f"{name}, {row.cache}", row.cache, whose == OWN)
            points.setdefault(line, []).append((keys, _rate(row, seconds)))
        if row.floor:
            floor = points.setdefault((_FLOOR, _FLOOR, False), [])
            if (keys, _rate(row, row.floor)) not in floor:
                floor.append((keys, _rate(row, row.floor)))
    return [plot.Line(*line, *zip(*own)) for line, own in points.items()]
