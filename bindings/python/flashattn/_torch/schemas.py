"""This module has the schemas of the operators, and leads the arguments of attention's into a call
and out of one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import itemgetter
from typing import Any, Callable

from .._argument_list import APPEND, ATTENTION, OUTPUTS, WRITTEN
from . import call
from .call import Call

_QKV = ("Tensor q", "Tensor k", "Tensor v")


def _optional(*groups: str) -> tuple[str, ...]:
    """Returns the arguments of these groups as a schema has them."""
    return tuple(
        f"{argument.kind.schema} {name}={default}"
        for argument in ATTENTION
        if argument.group in groups
        for name, default in call.options_of(argument)
    )


_RAGGED, _PAGES = _optional("ragged"), _optional("pages")
_OTHERS = _optional(*{argument.group for argument in ATTENTION} - {"ragged", "pages"})
_WITHOUT_DEFAULTS = tuple(argument.partition("=")[0] for argument in _RAGGED)
_OTHERS_OF_DECODE = tuple(x for x in _OTHERS if not x.endswith(" seqused_k=None"))
_OF_DECODE = ("Tensor seqused_k", *_PAGES, _RAGGED[-1], *_OTHERS_OF_DECODE)
# ARGUMENTS holds the arguments of each operator, without those for its outputs.
ARGUMENTS = {
    "fwd": ", ".join((*_QKV, *_OTHERS)),
    "varlen_fwd": ", ".join((*_QKV, *_WITHOUT_DEFAULTS, *_PAGES, *_OTHERS)),
    "decode": ", ".join((*_QKV, *_OF_DECODE)),
    "combine": "Tensor o_partial, Tensor lse_partial, Tensor? sinks=None",
}
# ARGUMENTS_OF_GRADIENTS holds those of the operators that compute gradients: what the forward pass
# had and returned, without pages and scales, of which there are none.
_OF_FORWARD = ("Tensor d_o", *_QKV, "Tensor o", "Tensor lse")
_UNDERIVED = {"ragged", "pages", "scales", "q_scales"}
_DERIVED = _optional(*{argument.group for argument in ATTENTION} - _UNDERIVED)
ARGUMENTS_OF_GRADIENTS = {
    "bwd": ", ".join((*_OF_FORWARD, *_DERIVED)),
    "varlen_bwd": ", ".join((*_OF_FORWARD, *_WITHOUT_DEFAULTS, *_DERIVED)),
}


def _arguments_of_append() -> str:
    """Returns the arguments of kv_append; each tensor that it writes to has a letter of its own."""
    letters = iter("cdefgh")
    options = (
        f"{argument.kind.schema} {argument.name}={argument.default}".replace(
            "(!)", f"({next(letters)}!)" if argument.kind is WRITTEN else ""
        )
        for argument in APPEND
    )
    tokens = "Tensor k_new, Tensor? v_new, Tensor(a!) k_cache, Tensor(b!)? v_cache"
    return ", ".join((tokens, *options))


def names_of(arguments: str) -> list[str]:
    """Returns the names of the arguments of a schema."""
    return re.findall(r" (\w+)(?:=|,|$)", arguments)


def tensors_of(arguments: str) -> list[tuple[int, str]]:
    """Returns the place and the name of each argument of a schema that is a tensor."""
    return [
        (i, names_of(f" {argument}")[0])
        for i, argument in enumerate(arguments.split(", "))
        if argument.startswith("Tensor")
    ]


TENSORS = {name: tensors_of(arguments) for name, arguments in ARGUMENTS.items()}
NAMES = {name: names_of(arguments) for name, arguments in ARGUMENTS.items()}
NAMES_OF_GRADIENTS = {name: names_of(x) for name, x in ARGUMENTS_OF_GRADIENTS.items()}
ARGUMENTS_OF_APPEND = _arguments_of_append()
NAMES_OF_APPEND = names_of(ARGUMENTS_OF_APPEND)


def call_maker(operator: str) -> Callable[..., Call]:
    """Returns a function of an operator's arguments, of which torch leaves out the last ones that
    have their defaults, and of the outputs in their order: it returns the call."""
    names = NAMES[operator]
    defaults = tuple(call.DEFAULTS.get(name) for name in names)
    given = [*names, *(argument.name for argument in OUTPUTS)]

    def take(wanted: Iterable[str]) -> itemgetter:
        """Returns what takes these out of the given ones, and None, the last one, for others."""
        return itemgetter(*(given.index(x) if x in given else len(given) for x in wanted))

    def take_group(group: tuple[str, ...]) -> Callable[[tuple], tuple | None]:
        members = take(group)
        if set(group) & set(names):
            return lambda all_given: _group(members(all_given))
        return lambda all_given: None

    ragged, pages, bias = map(take_group, call.GROUPS.values())
    first = call.PLACES["ragged"]
    end = first + len(call.GROUPS)
    take_all, take_first = take(call.NAMES), take(call.NAMES[: call.N_FIRST])
    # A call of more than n_plain arguments may have a group, of more than n_first the last ones.
    n_plain = min(names.index(x) for x in names if any(x in y for y in call.GROUPS.values()))
    n_first = names.index(call.NAMES[call.N_FIRST])

    def make(arguments: tuple, *outputs: Any) -> Call:
        n_given = len(arguments)
        x = (*arguments, *defaults[n_given:], *outputs, None)
        made = take_all(x) if n_given > n_first else take_first(x)
        if n_given <= n_plain:
            return made
        return (*made[:first], ragged(x), pages(x), bias(x), *made[end:])

    return make


def _group(values: tuple) -> tuple | None:
    for value in values:
        if value is not None:
            return values
    return None
