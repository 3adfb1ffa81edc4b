"""The combinations that pairwise() chooses: all pairs, and few rows."""

from __future__ import annotations

from itertools import combinations, product

from pairwise import Row, pairwise

FACTORS = {"a": range(5), "b": "uvwx", "c": (None, 7), "d": (0.5, 1.5, 2.5)}


def _pairs(rows: list[Row]) -> set[tuple]:
    return {pair for row in rows for pair in combinations(row.items(), 2)}


def _every_pair() -> set[tuple]:
    items = [[(name, value) for value in values] for name, values in FACTORS.items()]
    return {pair for two in combinations(items, 2) for pair in product(*two)}


def test_every_pair_occurs_in_few_rows() -> None:
    rows = pairwise(FACTORS)
    assert _pairs(rows) == _every_pair()
    assert 5 * 4 <= len(rows) <= 24
    assert rows == pairwise(FACTORS)


def test_what_is_not_allowed_does_not_occur() -> None:
    def allowed(row: Row) -> bool:
        return row.get("c", 7) is not None or row.get("b", "u") == "u"

    rows = pairwise(FACTORS, allowed)
    refused = {pair for pair in _every_pair() if not allowed(dict(pair))}
    assert all(allowed(row) for row in rows)
    assert len(refused) == 3 and _pairs(rows) == _every_pair() - refused
