"""What `bench` times, and what it finds."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config, DType

OWN = "libflashattn"
SELECTED = "selected"  # the label of the library's own choice begins so


@dataclass(frozen=True)
class Contender:
    """Something to time: a kernel by its configuration, the library's own choice, or a peer."""

    label: str
    dtype: DType
    config: Config | None
    is_peer: bool = False


@dataclass(frozen=True)
class Timing:
    """Median time in seconds of one row of the table, and its rate in the unit of rates.unit()."""

    label: str
    dtype: str
    seqlen: int
    seconds: float
    rate: float
    is_peer: bool

    @property
    def name(self) -> str:
        """Whose kernel it is: a peer, the library, or one of its kernels by its configuration."""
        name = self.label.partition(" (")[0]
        if name == SELECTED:
            return OWN
        return name if self.is_peer else self.label
