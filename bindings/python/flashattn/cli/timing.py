"""What `bench` times, and what it finds."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config, DType


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
