"""This module holds the structs of _abi as formats of the module struct: a call fills one of them
in a microsecond, in which ctypes fills a few fields. The tests compare each size and offset with
_abi.
"""

from __future__ import annotations

import struct

_TENSOR = "Qqqqi36x"  # data, three strides, dtype; the rest is reserved

# FORWARD is flash_forward_args_t with all members but the executor, which no call here sets.
FORWARD = struct.Struct(
    "=IiiI"  # struct_size, device, dtype, flags
    + 4 * _TENSOR  # q, k, v, o
    + "Qqqq"  # lse and its strides
    + "QQQ"  # cu_seqlens_q, cu_seqlens_k, seqused_k
    + "qqqqqq"  # batch, seqlen_q, seqlen_k, n_heads, n_heads_kv, d_head
    + "qqff"  # window_left, window_right, softmax_scale, softcap
    + "QQ8x"  # workspace, workspace_size, executor
    + "QQQQ"  # paging, seqused_q, quant, sinks
    + "QqQq"  # alibi_slopes, alibi_stride_batch, mask, d_head_v
    + "qQ"  # attention_chunk, leftpad_k
    + "i52x"  # n_multiprocessors; the rest is reserved
)

# WORKSPACE is workspace and workspace_size of flash_forward_args_t, which are packed by themselves.
WORKSPACE = struct.Struct("=QQ")
WORKSPACE_OFFSET = FORWARD.size - struct.calcsize("=QQ8xQQQQQqQqqQi52x")

# PAGING is flash_paging_t: struct_size, page_size, n_pages, page_table, page_table_stride,
# page_indptr, page_rows, v_page_table.
PAGING = struct.Struct("=I4xqqQqQQQ")

# QUANT is flash_quant_t: struct_size, k_scale, v_scale, their strides of batch and head; the rest
# is reserved.
QUANT = struct.Struct("=I4xQQqqqq64x")

# APPEND is flash_kv_append_args_t with all members but the executor, which no call here sets.
APPEND = struct.Struct(
    "=IiiI"  # struct_size, device, dtype, flags
    + 6 * _TENSOR  # k_new, v_new, k, v, q, q_out
    + "QQQQQ"  # cu_seqlens_new, cu_seqlens_q, seqused_k, seqused_k_out, slot_mapping
    + "qqqqqqq"  # batch, seqlen_new, seqlen_k, seqlen_q, n_heads, n_heads_kv, d_head
    + "QQQ8x"  # paging, rotary, quant, executor
)

# ROTARY is flash_rotary_t: struct_size, dtype, flags, cos, sin, stride_position, n_positions,
# rotary_dim, positions, start.
ROTARY = struct.Struct("=IiI4xQQqqqQQ")

# COMBINE is flash_combine_args_t. Partial results lie in one tensor here: no call passes arrays of
# pointers.
COMBINE = struct.Struct(
    "=IiiI"  # struct_size, device, dtype, flags
    + _TENSOR  # o_partial
    + "q8x"  # stride_partial, o_partials
    + "Q8xqqqq"  # lse_partial, lse_partials, its strides
    + _TENSOR  # o
    + "Qqqq"  # lse and its strides
    + "qqqqq8x"  # n_partials, batch, seqlen_q, n_heads, d_head, executor
    + "Q"  # sinks
)
