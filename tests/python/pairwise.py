"""Chooses combinations of factors such that every two values of two factors meet, for tests too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, product

import pytest

Row = Mapping[str, object]
_Choice = tuple[str, int]  # the name of a factor, and the place of one of its values
_Uses = Counter[frozenset[_Choice]]  # of pairs


def combined(**factors: Iterable[object]) -> pytest.MarkDecorator:
    """Parametrizes a test such that every two values of two arguments meet."""
    rows = [tuple(row.values()) for row in pairwise({x: list(y) for x, y in factors.items()})]
    return pytest.mark.parametrize(",".join(factors), rows, ids=str)


def pairwise(
    factors: Mapping[str, Sequence[object]], allowed: Callable[[Row], bool] = lambda row: True
) -> list[dict[str, object]]:
    """Returns few rows, each with a value of every factor. All pairs of values that are allowed
    occur. Rows come in the same order every time.

    allowed    says whether values of some factors go together; whatever it allows must be possible
               to complete
    """
    choices = [[(name, i) for i in range(len(values))] for name, values in factors.items()]

    def fits(row: Sequence[_Choice]) -> bool:
        return allowed({name: factors[name][i] for name, i in row})

    uses: _Uses = Counter()
    rows = []
    for pair in (pair for two in combinations(choices, 2) for pair in product(*two)):
        if fits(pair) and not uses[frozenset(pair)]:
            row = _complete(pair, choices, fits, uses)
            uses.update(map(frozenset, combinations(row, 2)))
            rows.append({name: factors[name][dict(row)[name]] for name in factors})
    return rows


def _complete(
    pair: Sequence[_Choice],
    choices: Sequence[Sequence[_Choice]],
    fits: Callable[[Sequence[_Choice]], bool],
    uses: _Uses,
) -> list[_Choice]:
    """Adds a value of each other factor to a pair: the one that makes the most pairs that were not
    used yet, and of several the one whose pairs were used least."""
    row = list(pair)

    def merit(choice: _Choice) -> tuple[int, int]:
        counts = [uses[frozenset((other, choice))] for other in row]
        return counts.count(0), -sum(counts)

    for of_factor in choices:
        if not set(of_factor) & set(pair):
            row.append(max((choice for choice in of_factor if fits([*row, choice])), key=merit))
    return row
