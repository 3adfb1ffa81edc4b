"""This module says where each argument lies in a call of attention: one tuple, which goes from
torch_ops or an operator to the extension or forward(). There are no names in it, since a dictionary
would take a good part of a call's time.
"""

from __future__ import annotations

from typing import Any

from .. import _abi
from .._argument_list import ATTENTION, FLAG, MEMBERS, OUTPUTS, WINDOW, Argument, names_of

# Call holds q, k, v, the outputs, the groups, and the other arguments of ATTENTION, in that order,
# the two numbers of a window apart. A group is a tuple; most calls have None in its place. The last
# arguments, those behind the first N_FIRST, are left out where all of them have their defaults.
Call = tuple[Any, ...]
GROUPS = {group: names_of(group) for group in ("ragged", "pages", "bias")}


def options_of(argument: Argument) -> list[tuple[str, Any]]:
    """Returns the names and defaults that an argument has in a call."""
    if argument.kind is WINDOW:
        return list(zip(("window_left", "window_right"), argument.default))
    return [(argument.name, argument.default)]


_OPTIONS = [
    option
    for argument in (*OUTPUTS, *ATTENTION)
    if argument.group not in GROUPS
    for option in options_of(argument)
]
_AT_GROUPS = 3 + len(OUTPUTS)
# NAMES holds what lies in the places of a call.
NAMES = ("q", "k", "v", *(name for name, _ in _OPTIONS))
NAMES = (*NAMES[:_AT_GROUPS], *GROUPS, *NAMES[_AT_GROUPS:])
PLACES = {name: place for place, name in enumerate(NAMES)}
N_FIRST = PLACES["seqused_k"] + 1
DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(name for names in GROUPS.values() for name in names),
    **dict(_OPTIONS),
}


def named(call: Call) -> dict[str, Any]:
    """Returns all arguments of a call by their names."""
    given = {**DEFAULTS, **dict(zip(NAMES, call))}
    for group, names in GROUPS.items():
        given.update(zip(names, given.pop(group) or ()))
    return given


# The extension reads these into members of flash_forward_args_t: each has its place in a call, the
# letter of its kind, and the offset of the member, or the flag. It gives up a call with q_descale
# or dropout, which have members of other structs.
_ABSENT = ord("-")
MEMBERS_OF_CALL = (
    *(
        (
            PLACES[argument.name],
            ord(argument.kind.member),
            argument.flag
            if argument.kind is FLAG
            else getattr(_abi.flash_forward_args_t, argument.name).offset,
        )
        for argument in MEMBERS
    ),
    *((PLACES[name], _ABSENT, 0) for name in ("q_descale", *names_of("dropout"))),
)
