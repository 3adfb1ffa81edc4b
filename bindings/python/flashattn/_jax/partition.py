"""This module tells XLA how a call is divided among devices: by the batch and by heads, each part
of which is a call of its own. Every other axis must be whole on each device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from jax.experimental.custom_partitioning import (
    ArrayMapping,
    CompoundFactor,
    SdyShardingRule,
    custom_partitioning,
)
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .axes import BATCH, HEADS, KV_HEADS, Axes, axes_of
from .call import Call
from .primitive import bind


def partitioned(call: Call) -> Callable[..., list[Any]]:
    """Returns the function of a call's arrays that XLA may divide."""

    @custom_partitioning
    def attend(*arrays: Any) -> list[Any]:
        return bind(*arrays, call=call)

    attend.def_partition(partition=partial(_partition, call), sharding_rule=partial(_rule, call))
    return attend


def _partition(
    call: Call, mesh: Mesh, arrays: Sequence[Any], results: Sequence[Any]
) -> tuple[Mesh, Callable[..., list[Any]], list[NamedSharding], tuple[NamedSharding, ...]]:
    axes = axes_of(call, arrays)
    along = _divided(axes, mesh, arrays[0].sharding.spec)
    of_operands, of_results = (
        [NamedSharding(mesh, PartitionSpec(*map(along.get, names))) for names in kinds]
        for kinds in (axes.operands, axes.results)
    )
    return mesh, partial(bind, call=call), of_results, tuple(of_operands)


def _divided(axes: Axes, mesh: Mesh, spec: PartitionSpec) -> dict[str, Any]:
    """Returns the mesh's axes along which the batch and heads are divided, as those of Q are: where
    they can be, into equal parts, and query heads only together with their K/V head."""
    of_q = dict(zip(axes.operands[0], (*spec, None, None, None, None)))
    along = {}
    if axes.batch is not None and axes.batch % parts_of(mesh, of_q[BATCH]) == 0:
        along[BATCH] = of_q[BATCH]
    n_parts = parts_of(mesh, of_q[HEADS])
    if axes.n_heads_kv % n_parts == 0:
        along |= {HEADS: of_q[HEADS], KV_HEADS: of_q[HEADS]}
    elif axes.n_heads_kv == 1 and axes.n_heads % n_parts == 0:
        along[HEADS] = of_q[HEADS]
    return along


def parts_of(mesh: Mesh, names: Any) -> int:
    of_one = (names,) if isinstance(names, str) else names or ()
    return math.prod(mesh.shape[name] for name in of_one)


def _rule(call: Call, mesh: Mesh, operands: Any, results: Any) -> SdyShardingRule:
    axes = axes_of(call, operands)
    return Factors(axes).rule()


class Factors:
    """Gives each axis its factors in the notation of Shardy: query heads are K/V heads times the
    group that shares one. `whole` has those that are not divided, in the order of their use."""

    def __init__(self, axes: Axes) -> None:
        self._axes = axes
        group = axes.n_heads // axes.n_heads_kv
        self.whole: list[str] = []
        self.sizes: dict[str, int] = {}
        self._named: dict[str, Any] = {BATCH: "b", HEADS: "g", KV_HEADS: "g"}
        if axes.n_heads_kv == 1:
            del self._named[KV_HEADS]
        elif group > 1:
            self._named[HEADS] = CompoundFactor("g", "r")
            self.sizes["r"] = group

    def rule(self) -> SdyShardingRule:
        """Returns the rule by which Shardy divides a call with these axes."""
        mappings = [
            tuple(ArrayMapping(*map(self._of, names)) for names in kinds)
            for kinds in (self._axes.operands, self._axes.results)
        ]
        return SdyShardingRule(*mappings, need_replication_factors=tuple(self.whole), **self.sizes)

    def _of(self, name: str | None) -> Any:
        found = self._named.get(name)
        if found is None:
            found = f"x{len(self.whole)}"
            self.whole.append(found)
        elif "r" in self.sizes and name == HEADS and "r" not in self.whole:
            self.whole.append("r")
        return found
