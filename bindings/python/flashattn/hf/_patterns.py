"""This module reads what a mask function of transformers consists of.

Such a function is a closure that says of a query and a key whether the one sees the other. Those of
transformers' masking_utils are told apart by the function that made them; whatever else there is
makes a pattern unknown, and its elements must be asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor
from transformers import masking_utils

MaskFunction = Callable[..., Any]
_INT32_MAX = 2**31 - 1


class Pattern:
    """Holds the parts of a mask function, all of which a key must pass to be seen.

    is_causal      keys after a query are masked
    left, right    a query sees so many keys before and after its own; -1: all of them
    chunk          queries see the keys of their chunk, of so many positions, alone; 0: there are no
                   chunks
    left_padding   [batch]: the position at which the first chunk of a sequence begins
    sequence_ids   [batch, seqlen]: queries see the keys of the same id, and positions count from
                   the beginning of each sequence
    """

    __slots__ = ("is_causal", "left", "right", "chunk", "left_padding", "sequence_ids")

    def __init__(self) -> None:
        self.is_causal = False
        self.left = self.right = -1
        self.chunk = 0
        self.left_padding: Tensor | None = None
        self.sequence_ids: Tensor | None = None

    @classmethod
    def of(cls, mask_function: MaskFunction) -> Pattern | None:
        """Returns the pattern of a mask function; None where a part of it is not known here."""
        pattern = cls()
        is_remapped = False
        for part, maker, variables in _parts(mask_function):
            if part is masking_utils.causal_mask_function:
                pattern.is_causal = True
            elif maker == "remap_positions_for_packed_sequence":
                is_remapped = True
            elif part is masking_utils.bidirectional_mask_function:
                continue
            elif maker not in _READERS or not _READERS[maker](pattern, variables):
                return None
        # An id that does not come from positions may recur after others, and windows would then
        # count the tokens of the others, too.
        return pattern if is_remapped == (pattern.sequence_ids is not None) else None

    @property
    def window(self) -> tuple[int, int]:
        """The keys that a query sees to its left and to its right, as the library takes them."""
        return self.left, self.right

    @property
    def has_order(self) -> bool:
        """What a query sees depends on its position."""
        return self.is_causal or self.chunk > 0 or self.window != (-1, -1)

    def _take_left(self, variables: dict[str, Any]) -> bool:
        return self._narrow(variables["sliding_window"], 1, -1)

    def _take_both(self, variables: dict[str, Any]) -> bool:
        return self._narrow(variables["sliding_window"], 0, 0)

    def _narrow(self, window: Any, least: int, more: int) -> bool:
        """Sets the sides of a window. Returns whether the library can say it: it has no window
        without the query's own key."""
        if not isinstance(window, int) or window < least or self.left >= 0:
            return False
        if window <= _INT32_MAX:
            self.left = window + more
            self.right = self.left if least == 0 else -1
        return True

    def _take_chunks(self, variables: dict[str, Any]) -> bool:
        has_first = self.chunk == 0
        self.chunk, self.left_padding = variables["chunk_size"], variables["left_padding"]
        return has_first and isinstance(self.chunk, int) and self.chunk > 0

    def _take_ids(self, variables: dict[str, Any]) -> bool:
        has_first = self.sequence_ids is None
        self.sequence_ids = variables["packed_sequence_mask"]
        return has_first


# These take the variables of the functions that their keys make, and return whether they can.
_READERS: dict[str, Callable[[Pattern, dict[str, Any]], bool]] = {
    "sliding_window_overlay": Pattern._take_left,
    "sliding_window_bidirectional_overlay": Pattern._take_both,
    "chunked_overlay": Pattern._take_chunks,
    "packed_sequence_mask_function": Pattern._take_ids,
}


def _parts(function: MaskFunction) -> Iterator[tuple[MaskFunction, str, dict[str, Any]]]:
    """Returns the functions whose intersection a mask function is, each with the name of the
    function of masking_utils that made it, and with its variables."""
    is_known = getattr(function, "__module__", None) == masking_utils.__name__
    maker = function.__qualname__.partition(".")[0] if is_known else ""
    variables = _variables(function) if is_known else {}
    if maker == "and_masks":
        for part in variables["mask_functions"]:
            yield from _parts(part)
        return
    yield function, maker, variables
    if maker == "remap_positions_for_packed_sequence":
        yield from _parts(variables["mask_function"])


def _variables(function: MaskFunction) -> dict[str, Any]:
    cells = function.__closure__ or ()
    return {name: x.cell_contents for name, x in zip(function.__code__.co_freevars, cells)}
