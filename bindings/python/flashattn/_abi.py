"""This module describes the C API of include/flashattn.h to ctypes: constants, structs, prototypes.

All follow the header one-to-one and under its names; the header is the manual. The test suite
compares every number here with what a C compiler makes of the header.
"""

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
    sizeof,
)

FLASH_VERSION_NUMBER = 200
FLASH_ABI_VERSION = 0

FLASH_SUCCESS = 0
FLASH_ERROR_INVALID_ARGUMENT = 100
FLASH_ERROR_INVALID_CONFIG = 101
FLASH_ERROR_WORKSPACE_TOO_SMALL = 102
FLASH_ERROR_BUFFER_TOO_SMALL = 103
FLASH_ERROR_UNSUPPORTED = 200
FLASH_ERROR_NOT_BUILT = 201
FLASH_ERROR_OUT_OF_MEMORY = 300
FLASH_ERROR_NO_DEVICE = 301
FLASH_ERROR_CUDA = 302
FLASH_ERROR_INTERNAL = 900

FLASH_DTYPE_FP16 = 1
FLASH_DTYPE_BF16 = 2
FLASH_DTYPE_FP32 = 3
FLASH_DTYPE_E4M3 = 4
FLASH_DTYPE_LATENT_E4M3 = 5
FLASH_DTYPE_Q8_0 = 6
FLASH_DTYPE_Q4_0 = 7

FLASH_LATENT_TOKEN_BYTES = 656
FLASH_QUANT_BLOCK = 32
FLASH_Q8_0_BYTES = 34
FLASH_Q4_0_BYTES = 18

FLASH_ARCH_REFERENCE = 1
FLASH_ARCH_AVX2 = 2
FLASH_ARCH_AVX512 = 3
FLASH_ARCH_AMX = 4
FLASH_ARCH_NEON = 5
FLASH_ARCH_AVX512_BF16 = 6
FLASH_ARCH_NEON_BF16 = 7
FLASH_ARCH_SM80 = 80
FLASH_ARCH_SM80_DECODE = 81
FLASH_ARCH_SM80_MLA = 82
FLASH_ARCH_SM80_WIDE = 83
FLASH_ARCH_SM90 = 90
FLASH_ARCH_SM90_DECODE = 91
FLASH_ARCH_SM90_MLA = 92
FLASH_ARCH_SM90_WIDE = 93
FLASH_ARCH_MIXED = 100

FLASH_OP_FORWARD = 0
FLASH_OP_BACKWARD_DQ = 1
FLASH_OP_BACKWARD_DKV = 2

FLASH_BACKWARD_ADD_DQ = 1
FLASH_BACKWARD_ADD_DK = 2
FLASH_BACKWARD_ADD_DV = 4

FLASH_FEATURE_CAUSAL = 1
FLASH_FEATURE_WINDOW = 2
FLASH_FEATURE_SOFTCAP = 4
FLASH_FEATURE_VARLEN = 8
FLASH_FEATURE_PAGED = 16
FLASH_FEATURE_BIAS = 32
FLASH_FEATURE_DROPOUT = 64

FLASH_MASK_ADD = 1
FLASH_MASK_BITS = 2
FLASH_MASK_BLOCKS = 3
FLASH_MASK_LAST_KEYS = 1

FLASH_ROTARY_INTERLEAVED = 1
FLASH_ROTARY_Q_AT_START = 2

FLASH_CONFIG_TEXT_SIZE = 256

FLASH_TUNING_TEXT_SIZE = 512
FLASH_TUNING_HEADER = "flashattn tuning 1"

FLASH_DEVICE_CPU = 0
FLASH_DEVICE_CUDA = 0x10000
FLASH_DEVICE_CUDA_CURRENT = 0x1FFFF

FLASH_ISA_AVX2 = 1
FLASH_ISA_AVX512 = 2
FLASH_ISA_AMX = 4
FLASH_ISA_NEON = 8
FLASH_ISA_AVX512_BF16 = 16
FLASH_ISA_NEON_BF16 = 32

FLASH_FLAG_CAUSAL = 1
FLASH_FLAG_WINDOW = 2
FLASH_FLAG_BATCH_INVARIANT = 4
FLASH_FLAG_BROADCAST = 8
FLASH_FLAG_PAGE_HOLES = 16
FLASH_FLAG_PAGE_SCALES = 32

FLASH_QUANTISE_TOKENS = 256
FLASH_QUANTISE_MINUS_MEAN = 512
FLASH_QUANTISE_HADAMARD = 1024


# CONFIG_FIELDS holds the members of flash_config_t after struct_size, in sort order.
CONFIG_FIELDS = (
    "arch",
    "op",
    "dtype",
    "d_head",
    "B_r",
    "B_c",
    "n_warps",
    "async_copy",
    "eager_load_blocks",
    "swizzled",
    "Q_mma_load_K_fragments",
    "K_mma_load_K_fragments",
    "V_mma_load_K_fragments",
    "mma_double_buffer_loads",
    "optimized_softmax",
    "features",
    "n_stages",
    "overlap",
    "ping_pong",
    "persistent",
    "longest_first",
    "fixed_reference",
    "d_head_v",
    "operand_dtype",
)


class _SizedStructure(Structure):
    """This struct starts with struct_size, which is filled in here as by the ..._INIT macros."""

    def __init__(self, **fields: object) -> None:
        super().__init__(struct_size=sizeof(self), **fields)


class flash_config_t(_SizedStructure):
    _fields_ = [("struct_size", c_uint32), *((name, c_int32) for name in CONFIG_FIELDS)]


class flash_kernel_resources_t(_SizedStructure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("threads", c_int32),
        ("registers", c_int32),
        ("local_memory", c_int32),
        ("shared_memory", c_int32),
        ("blocks_per_multiprocessor", c_int32),
    ]


class flash_device_info_t(_SizedStructure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("device", c_int32),
        ("name", c_char * 64),
        ("isa", c_uint32),
        ("n_threads", c_int32),
        ("compute_capability", c_int32),
        ("n_multiprocessors", c_int32),
        ("shared_memory_per_block", c_int32),
        ("reserved", c_int32),
    ]


class flash_tensor_t(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("stride_batch", c_int64),
        ("stride_seq", c_int64),
        ("stride_head", c_int64),
        ("dtype", c_int32),
        ("reserved32", c_int32),
        ("reserved", c_uint64 * 4),
    ]


class flash_paging_t(_SizedStructure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved32", c_int32),
        ("page_size", c_int64),
        ("n_pages", c_int64),
        ("page_table", c_void_p),
        ("page_table_stride", c_int64),
        ("page_indptr", c_void_p),
        ("page_rows", c_void_p),
        ("v_page_table", c_void_p),
        ("page_rows64", c_void_p),
    ]


class flash_quant_t(_SizedStructure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved32", c_int32),
        ("k_scale", c_void_p),
        ("v_scale", c_void_p),
        ("k_scale_stride_batch", c_int64),
        ("k_scale_stride_head", c_int64),
        ("v_scale_stride_batch", c_int64),
        ("v_scale_stride_head", c_int64),
        ("q_scale", c_void_p),
        ("q_scale_stride_batch", c_int64),
        ("q_scale_stride_head", c_int64),
        ("q_token_scale", c_void_p),
        ("q_token_scale_stride_batch", c_int64),
        ("q_token_scale_stride_seq", c_int64),
        ("q_token_scale_stride_head", c_int64),
        ("reserved", c_uint64 * 1),
    ]


class flash_mask_t(_SizedStructure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", c_int32),
        ("dtype", c_int32),
        ("flags", c_uint32),
        ("data", c_void_p),
        ("stride_batch", c_int64),
        ("stride_head", c_int64),
        ("stride_query", c_int64),
        ("stride_key", c_int64),
        ("first_key", c_int64),
        ("n_keys", c_int64),
        ("head_scale", c_void_p),
        ("block_q", c_int64),
        ("block_k", c_int64),
    ]


class flash_dropout_t(_SizedStructure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("p", c_float),
        ("seed", c_uint64),
        ("offset", c_uint64),
        ("seed_ptr", c_void_p),
        ("offset_ptr", c_void_p),
    ]


class flash_forward_args_t(_SizedStructure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("device", c_int32),
        ("dtype", c_int32),
        ("flags", c_uint32),
        ("q", flash_tensor_t),
        ("k", flash_tensor_t),
        ("v", flash_tensor_t),
        ("o", flash_tensor_t),
        ("lse", c_void_p),
        ("lse_stride_batch", c_int64),
        ("lse_stride_head", c_int64),
        ("lse_stride_seq", c_int64),
        ("cu_seqlens_q", c_void_p),
        ("cu_seqlens_k", c_void_p),
        ("seqused_k", c_void_p),
        ("batch", c_int64),
        ("seqlen_q", c_int64),
        ("seqlen_k", c_int64),
        ("n_heads", c_int64),
        ("n_heads_kv", c_int64),
        ("d_head", c_int64),
        ("window_left", c_int64),
        ("window_right", c_int64),
        ("softmax_scale", c_float),
        ("softcap", c_float),
        ("workspace", c_void_p),
        ("workspace_size", c_uint64),
        ("executor", c_void_p),
        ("paging", c_void_p),
        ("seqused_q", c_void_p),
        ("quant", c_void_p),
        ("sinks", c_void_p),
        ("alibi_slopes", c_void_p),
        ("alibi_stride_batch", c_int64),
        ("mask", c_void_p),
        ("d_head_v", c_int64),
        ("attention_chunk", c_int64),
        ("leftpad_k", c_void_p),
        ("n_multiprocessors", c_int32),
        ("reserved32", c_int32),
        ("diagonal_offset", c_int64),
        ("dropout", c_void_p),
        ("reserved", c_uint64 * 4),
    ]


class flash_backward_args_t(_SizedStructure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("forward", c_void_p),
        ("d_o", flash_tensor_t),
        ("d_lse", c_void_p),
        ("d_lse_stride_batch", c_int64),
        ("d_lse_stride_head", c_int64),
        ("d_lse_stride_seq", c_int64),
        ("dq", flash_tensor_t),
        ("dk", flash_tensor_t),
        ("dv", flash_tensor_t),
        ("d_sinks", c_void_p),
        ("total_q", c_int64),
        ("total_k", c_int64),
        ("dq_kernel", c_void_p),
        ("dkv_kernel", c_void_p),
        ("workspace", c_void_p),
        ("workspace_size", c_uint64),
        ("reserved", c_uint64 * 8),
    ]


class flash_team_t(Structure):
    _fields_ = [("reserved", c_uint64 * 48)]


class flash_combine_args_t(_SizedStructure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("device", c_int32),
        ("dtype", c_int32),
        ("flags", c_uint32),
        ("o_partial", flash_tensor_t),
        ("stride_partial", c_int64),
        ("o_partials", c_void_p),
        ("lse_partial", c_void_p),
        ("lse_partials", c_void_p),
        ("lse_partial_stride", c_int64),
        ("lse_partial_stride_batch", c_int64),
        ("lse_partial_stride_head", c_int64),
        ("lse_partial_stride_seq", c_int64),
        ("o", flash_tensor_t),
        ("lse", c_void_p),
        ("lse_stride_batch", c_int64),
        ("lse_stride_head", c_int64),
        ("lse_stride_seq", c_int64),
        ("n_partials", c_int64),
        ("batch", c_int64),
        ("seqlen_q", c_int64),
        ("n_heads", c_int64),
        ("d_head", c_int64),
        ("executor", c_void_p),
        ("sinks", c_void_p),
    ]


class flash_quantise_args_t(_SizedStructure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("device", c_int32),
        ("reserved32", c_int32),
        ("flags", c_uint32),
        ("x", flash_tensor_t),
        ("codes", flash_tensor_t),
        ("scale", c_void_p),
        ("mean", c_void_p),
        ("cu_seqlens", c_void_p),
        ("batch", c_int64),
        ("seqlen", c_int64),
        ("n_heads", c_int64),
        ("n_scales", c_int64),
        ("d_head", c_int64),
        ("executor", c_void_p),
        ("reserved", c_uint64 * 4),
    ]


class flash_rotary_t(_SizedStructure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("dtype", c_int32),
        ("flags", c_uint32),
        ("reserved32", c_int32),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("stride_position", c_int64),
        ("n_positions", c_int64),
        ("rotary_dim", c_int64),
        ("positions", c_void_p),
        ("start", c_void_p),
    ]


class flash_kv_append_args_t(_SizedStructure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("device", c_int32),
        ("dtype", c_int32),
        ("flags", c_uint32),
        ("k_new", flash_tensor_t),
        ("v_new", flash_tensor_t),
        ("k", flash_tensor_t),
        ("v", flash_tensor_t),
        ("q", flash_tensor_t),
        ("q_out", flash_tensor_t),
        ("cu_seqlens_new", c_void_p),
        ("cu_seqlens_q", c_void_p),
        ("seqused_k", c_void_p),
        ("seqused_k_out", c_void_p),
        ("slot_mapping", c_void_p),
        ("batch", c_int64),
        ("seqlen_new", c_int64),
        ("seqlen_k", c_int64),
        ("seqlen_q", c_int64),
        ("n_heads", c_int64),
        ("n_heads_kv", c_int64),
        ("d_head", c_int64),
        ("paging", c_void_p),
        ("rotary", c_void_p),
        ("quant", c_void_p),
        ("executor", c_void_p),
        ("d_head_v", c_int64),
    ]


flash_task_t = CFUNCTYPE(None, c_void_p, c_int32)
flash_parallel_for_t = CFUNCTYPE(None, c_void_p, c_int32, flash_task_t, c_void_p)


class flash_executor_t(_SizedStructure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("n_workers", c_int32),
        ("run", flash_parallel_for_t),
        ("context", c_void_p),
    ]


_status = c_int32
_kernel = c_void_p
_stream = c_void_p
_config_p = POINTER(flash_config_t)
_args_p = POINTER(flash_forward_args_t)
_backward_p = POINTER(flash_backward_args_t)

# PROTOTYPES holds every exported function: name -> (restype, argtypes).
PROTOTYPES: dict[str, tuple[object, list[object]]] = {
    "flash_status_string": (c_char_p, [_status]),
    "flash_last_error": (c_char_p, []),
    "flash_last_status": (_status, []),
    "flash_version": (c_char_p, []),
    "flash_version_number": (c_int32, []),
    "flash_abi_version": (c_int32, []),
    "flash_config_format": (_status, [_config_p, c_void_p, c_size_t]),
    "flash_config_parse": (_status, [c_char_p, _config_p]),
    "flash_lookup_kernel": (_kernel, [_config_p]),
    "flash_kernel_count": (c_int32, []),
    "flash_kernel_at": (_kernel, [c_int32]),
    "flash_kernel_config": (_status, [_kernel, _config_p]),
    "flash_kernel_name": (c_char_p, [_kernel]),
    "flash_kernel_resources": (_status, [_kernel, c_int32, POINTER(flash_kernel_resources_t)]),
    "flash_device_info": (_status, [c_int32, POINTER(flash_device_info_t)]),
    "flash_set_num_threads": (_status, [c_int32]),
    "flash_num_threads": (c_int32, []),
    "flash_set_parallel_for": (_status, [flash_parallel_for_t, c_void_p, c_int32]),
    "flash_forward": (_status, [_args_p, _kernel, _stream]),
    "flash_workspace_size": (_status, [_args_p, _kernel, POINTER(c_uint64)]),
    "flash_prepare": (_status, [_args_p, _kernel]),
    "flash_select_kernel": (_status, [_args_p, POINTER(_kernel), c_void_p, c_size_t]),
    "flash_query_support": (_status, [_args_p, _kernel, c_void_p, c_size_t]),
    "flash_backward": (_status, [_backward_p, _stream]),
    "flash_backward_workspace_size": (
        _status,
        [_backward_p, POINTER(c_uint64), POINTER(c_uint64)],
    ),
    "flash_backward_prepare": (_status, [_backward_p]),
    "flash_backward_select_kernels": (
        _status,
        [_backward_p, POINTER(_kernel), POINTER(_kernel), c_void_p, c_size_t],
    ),
    "flash_backward_query_support": (_status, [_backward_p, c_void_p, c_size_t]),
    "flash_backward_measure": (
        _status,
        [_backward_p, POINTER(_kernel), c_int32, c_int32, _stream, POINTER(c_double)],
    ),
    "flash_measure": (
        _status,
        [_args_p, POINTER(_kernel), c_int32, c_int32, _stream, POINTER(c_double)],
    ),
    "flash_team_init": (_status, [POINTER(flash_team_t), c_int32]),
    "flash_team_destroy": (None, [POINTER(flash_team_t)]),
    "flash_team_run": (None, [c_void_p, c_int32, flash_task_t, c_void_p]),
    "flash_team_help": (None, [POINTER(flash_team_t)]),
    "flash_team_finish": (None, [POINTER(flash_team_t)]),
    "flash_tuning_format": (_status, [_args_p, _kernel, c_double, c_void_p, c_size_t]),
    "flash_set_tuning": (_status, [c_char_p]),
    "flash_combine": (_status, [POINTER(flash_combine_args_t), _stream]),
    "flash_quantise": (_status, [POINTER(flash_quantise_args_t), _stream]),
    "flash_kv_append": (_status, [POINTER(flash_kv_append_args_t), _stream]),
}
