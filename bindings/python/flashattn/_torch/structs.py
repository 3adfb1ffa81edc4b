"""This module holds the structs of _abi as formats of the module struct: a call fills one of them
in a microsecond, in which ctypes fills a few fields. Members that no call sets are padding.
"""

from __future__ import annotations

import ctypes
import struct

from .. import _abi

_CODES = {
    ctypes.c_int32: "i",
    ctypes.c_uint32: "I",
    ctypes.c_int64: "q",
    ctypes.c_uint64: "Q",
    ctypes.c_float: "f",
    ctypes.c_void_p: "Q",
}


def _format(kind: type[ctypes.Structure], absent: tuple[str, ...] = ()) -> str:
    """Returns the codes of a struct's members. The structs have no gaps between members."""
    text = ""
    for name, of_member in kind._fields_:
        if name in absent or name.startswith("reserved"):
            text += f"{ctypes.sizeof(of_member)}x"
        elif issubclass(of_member, ctypes.Structure):
            text += _format(of_member)
        else:
            text += _CODES[of_member]
    return text


def _packed(kind: type[ctypes.Structure], *absent: str) -> struct.Struct:
    return struct.Struct("=" + _format(kind, absent))


FORWARD = _packed(_abi.flash_forward_args_t, "executor")
PAGING = _packed(_abi.flash_paging_t)
QUANT = _packed(_abi.flash_quant_t)
APPEND = _packed(_abi.flash_kv_append_args_t, "executor")
DROPOUT = _packed(_abi.flash_dropout_t)
ROTARY = _packed(_abi.flash_rotary_t)
# Partial results lie in one tensor here: no call passes arrays of pointers.
COMBINE = _packed(_abi.flash_combine_args_t, "o_partials", "lse_partials", "executor")

# WORKSPACE is workspace and workspace_size of flash_forward_args_t, which are packed by themselves.
WORKSPACE = struct.Struct("=QQ")
WORKSPACE_OFFSET = _abi.flash_forward_args_t.workspace.offset
