"""This module lists the arguments of attention and of flash_kv_append once, for all that pass them
on: the functions for all arrays, torch's operators, what these call, and the extension.

The public functions have their arguments in `def` lines and docstrings of their own, where editors
and help() find them; tests/python/test_argument_list.py holds those to this list.
docs/an-argument.md leads a new argument from the C struct to the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from . import _abi


class Kind(NamedTuple):
    """Says what values an argument has.

    schema      its type in the schema of an operator of torch
    annotation  its type in flashattn.torch_ops
    member      the letter of its kind for those that read it into one member of
                flash_forward_args_t, which has its name, or into a flag; none where code of its own
                reads it
    """

    schema: str
    annotation: str
    member: str = ""

    @property
    def is_array(self) -> bool:
        return self.schema.startswith("Tensor")


ARRAY = Kind("Tensor?", "Tensor | None")
WRITTEN = Kind("Tensor(!)?", "Tensor | None")
TOKENS = Kind("Tensor?", "Tensor | None")  # int64, one for each new token
FACTORS = Kind("Tensor?", "Tensor | float | None")
LENGTHS = Kind("Tensor?", "Tensor | None", "p")  # [batch] int32
BOUND = Kind("SymInt?", "int | None")
WINDOW = Kind("SymInt", "tuple[int, int]")  # operators have its two numbers apart
INTEGER = Kind("SymInt", "int", "q")
COUNT = Kind("int", "int", "i")  # not negative, 32 bits
FLAG = Kind("bool", "bool", "?")
POSITIVE = Kind("float?", "float | None", "s")  # None becomes 0
CAP = Kind("float", "float", "f")  # 0 is none
PROBABILITY = Kind("float", "float")  # of a struct that members point to
DTYPE = Kind("ScalarType?", "torch.dtype | None")


class Argument(NamedTuple):
    name: str
    kind: Kind
    default: Any
    group: str

    @property
    def flag(self) -> int:
        """Gives the flag of the C API that an argument of kind FLAG is."""
        return getattr(_abi, f"FLASH_FLAG_{self.name.upper()}")


# Operators take these by their places: a new one comes last. A default of 0 is an integer for
# numbers too: torch's compilers make a float of a module an input of the graph, where lengths may
# change.
ATTENTION = (
    Argument("cu_seqlens_q", ARRAY, None, "ragged"),
    Argument("cu_seqlens_k", ARRAY, None, "ragged"),
    Argument("max_seqlen_q", BOUND, None, "ragged"),
    Argument("max_seqlen_k", BOUND, None, "ragged"),
    Argument("page_table", ARRAY, None, "pages"),
    Argument("v_page_table", ARRAY, None, "pages"),
    Argument("page_indptr", ARRAY, None, "pages"),
    Argument("page_rows", ARRAY, None, "pages"),
    Argument("softmax_scale", POSITIVE, None, "scores"),
    Argument("causal", FLAG, False, "mask"),
    Argument("window_size", WINDOW, (-1, -1), "mask"),
    Argument("softcap", CAP, 0, "scores"),
    Argument("batch_invariant", FLAG, False, "launch"),
    Argument("k_descale", FACTORS, None, "scales"),
    Argument("v_descale", FACTORS, None, "scales"),
    Argument("sinks", ARRAY, None, "scores"),
    Argument("seqused_q", LENGTHS, None, "lengths"),
    Argument("seqused_k", LENGTHS, None, "lengths"),
    Argument("alibi_slopes", ARRAY, None, "bias"),
    Argument("attn_mask", ARRAY, None, "bias"),
    Argument("mask_bits", ARRAY, None, "bias"),
    Argument("mask_keys", BOUND, None, "bias"),
    Argument("attention_chunk", INTEGER, 0, "mask"),
    Argument("leftpad_k", LENGTHS, None, "lengths"),
    Argument("n_multiprocessors", COUNT, 0, "launch"),
    Argument("mask_head_scale", ARRAY, None, "bias"),
    Argument("diagonal_offset", INTEGER, 0, "mask"),
    Argument("page_holes", FLAG, False, "mask"),
    Argument("q_descale", FACTORS, None, "q_scales"),
    Argument("dropout_p", PROBABILITY, 0, "dropout"),
    Argument("rng_state", ARRAY, None, "dropout"),
    Argument("page_scales", FLAG, False, "q_scales"),
)
OUTPUTS = (
    Argument("out", ARRAY, None, "outputs"),
    Argument("lse", ARRAY, None, "outputs"),
    Argument("return_lse", FLAG, False, "outputs"),
    Argument("out_dtype", DTYPE, None, "outputs"),
)
# Only the functions for all arrays have these: their defaults and types.
FOR_ALL_ARRAYS = {
    "kv_dtype": (None, "str | tuple[str | None, str | None] | None"),
    "workspace": (None, "Any"),
    "config": (None, "ConfigLike"),
}

# The arguments of flash_kv_append, behind k_new, v_new, k_cache and v_cache.
APPEND = (
    Argument("seqused_k", LENGTHS, None, "places"),
    Argument("seqused_k_out", WRITTEN, None, "places"),
    Argument("slot_mapping", TOKENS, None, "places"),
    Argument("cu_seqlens_new", ARRAY, None, "ragged"),
    *(argument for argument in ATTENTION if argument.group in ("pages", "scales")),
    Argument("q", ARRAY, None, "queries"),
    Argument("q_out", WRITTEN, None, "queries"),
    Argument("cu_seqlens_q", ARRAY, None, "queries"),
    Argument("rotary_cos", ARRAY, None, "rotary"),
    Argument("rotary_sin", ARRAY, None, "rotary"),
    Argument("rotary_interleaved", FLAG, False, "rotary"),
    Argument("rotary_positions", TOKENS, None, "rotary"),
    Argument("rotary_start", LENGTHS, None, "rotary"),
    Argument("rotary_q_at_start", FLAG, False, "rotary"),
    *(argument for argument in ATTENTION if argument.name == "page_scales"),
)

ARRAYS = tuple(argument.name for argument in ATTENTION if argument.kind.is_array)
ARRAYS_OF_APPEND = tuple(argument.name for argument in APPEND if argument.kind.is_array)
# MEMBERS holds those that are read into a member of their own, or into a flag.
MEMBERS = tuple(argument for argument in ATTENTION if argument.kind.member)
_OF_A_PROBLEM = {
    **{argument.name: argument.default for argument in ATTENTION},
    **{"out_dtype": None, "kv_dtype": None},
}


def names_of(*groups: str) -> tuple[str, ...]:
    """Returns the names of the arguments of these groups."""
    return tuple(argument.name for argument in ATTENTION if argument.group in groups)


def complete(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all arguments that describe a problem, those that are not given with their defaults.
    Raises TypeError for an argument that is none of them."""
    given = {**_OF_A_PROBLEM, **options}
    if len(given) != len(_OF_A_PROBLEM):
        name = next(name for name in options if name not in _OF_A_PROBLEM)
        raise TypeError(f"{name!r} is no argument that describes attention")
    return given
