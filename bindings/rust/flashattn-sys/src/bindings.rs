// Made of include/flashattn.h by bindings/rust/generate.py: change these, and run it.

use core::ffi::{c_char, c_void};
use core::mem::{offset_of, size_of};

pub const FLASH_VERSION_MAJOR: i32 = 0;
pub const FLASH_VERSION_MINOR: i32 = 2;
pub const FLASH_VERSION_PATCH: i32 = 0;
pub const FLASH_ABI_VERSION: i32 = 0;
pub const FLASH_LATENT_TOKEN_BYTES: usize = 656;
pub const FLASH_QUANT_BLOCK: i32 = 32;
pub const FLASH_Q8_0_BYTES: usize = 34;
pub const FLASH_Q4_0_BYTES: usize = 18;
pub const FLASH_CONFIG_TEXT_SIZE: usize = 256;
pub const FLASH_TUNING_TEXT_SIZE: usize = 512;
pub const FLASH_VERSION_NUMBER: i32 = 200;
pub const FLASH_TUNING_HEADER: &str = "flashattn tuning 1";
pub const FLASH_SUCCESS: i32 = 0;
pub const FLASH_ERROR_INVALID_ARGUMENT: i32 = 100;
pub const FLASH_ERROR_INVALID_CONFIG: i32 = 101;
pub const FLASH_ERROR_WORKSPACE_TOO_SMALL: i32 = 102;
pub const FLASH_ERROR_BUFFER_TOO_SMALL: i32 = 103;
pub const FLASH_ERROR_UNSUPPORTED: i32 = 200;
pub const FLASH_ERROR_NOT_BUILT: i32 = 201;
pub const FLASH_ERROR_OUT_OF_MEMORY: i32 = 300;
pub const FLASH_ERROR_NO_DEVICE: i32 = 301;
pub const FLASH_ERROR_CUDA: i32 = 302;
pub const FLASH_ERROR_INTERNAL: i32 = 900;
pub const FLASH_DTYPE_FP16: i32 = 1;
pub const FLASH_DTYPE_BF16: i32 = 2;
pub const FLASH_DTYPE_FP32: i32 = 3;
pub const FLASH_DTYPE_E4M3: i32 = 4;
pub const FLASH_DTYPE_LATENT_E4M3: i32 = 5;
pub const FLASH_DTYPE_Q8_0: i32 = 6;
pub const FLASH_DTYPE_Q4_0: i32 = 7;
pub const FLASH_ARCH_REFERENCE: i32 = 1;
pub const FLASH_ARCH_AVX2: i32 = 2;
pub const FLASH_ARCH_AVX512: i32 = 3;
pub const FLASH_ARCH_AMX: i32 = 4;
pub const FLASH_ARCH_NEON: i32 = 5;
pub const FLASH_ARCH_AVX512_BF16: i32 = 6;
pub const FLASH_ARCH_NEON_BF16: i32 = 7;
pub const FLASH_ARCH_SM80: i32 = 80;
pub const FLASH_ARCH_SM80_DECODE: i32 = 81;
pub const FLASH_ARCH_SM80_MLA: i32 = 82;
pub const FLASH_ARCH_SM80_WIDE: i32 = 83;
pub const FLASH_ARCH_SM90: i32 = 90;
pub const FLASH_ARCH_SM90_DECODE: i32 = 91;
pub const FLASH_ARCH_SM90_MLA: i32 = 92;
pub const FLASH_ARCH_SM90_WIDE: i32 = 93;
pub const FLASH_ARCH_MIXED: i32 = 100;
pub const FLASH_OP_FORWARD: i32 = 0;
pub const FLASH_OP_BACKWARD_DQ: i32 = 1;
pub const FLASH_OP_BACKWARD_DKV: i32 = 2;
pub const FLASH_FEATURE_CAUSAL: i32 = 1;
pub const FLASH_FEATURE_WINDOW: i32 = 2;
pub const FLASH_FEATURE_SOFTCAP: i32 = 4;
pub const FLASH_FEATURE_VARLEN: i32 = 8;
pub const FLASH_FEATURE_PAGED: i32 = 16;
pub const FLASH_FEATURE_BIAS: i32 = 32;
pub const FLASH_FEATURE_DROPOUT: i32 = 64;
pub const FLASH_DEVICE_CPU: i32 = 0;
pub const FLASH_DEVICE_CUDA: i32 = 0x10000;
pub const FLASH_DEVICE_CUDA_CURRENT: i32 = 0x1ffff;
pub const FLASH_ISA_AVX2: u32 = 1;
pub const FLASH_ISA_AVX512: u32 = 2;
pub const FLASH_ISA_AMX: u32 = 4;
pub const FLASH_ISA_NEON: u32 = 8;
pub const FLASH_ISA_AVX512_BF16: u32 = 16;
pub const FLASH_ISA_NEON_BF16: u32 = 32;
pub const FLASH_FLAG_CAUSAL: u32 = 1;
pub const FLASH_FLAG_WINDOW: u32 = 2;
pub const FLASH_FLAG_BATCH_INVARIANT: u32 = 4;
pub const FLASH_FLAG_BROADCAST: u32 = 8;
pub const FLASH_FLAG_PAGE_HOLES: u32 = 16;
pub const FLASH_FLAG_PAGE_SCALES: u32 = 32;
pub const FLASH_MASK_ADD: i32 = 1;
pub const FLASH_MASK_BITS: i32 = 2;
pub const FLASH_MASK_BLOCKS: i32 = 3;
pub const FLASH_MASK_LAST_KEYS: u32 = 1;
pub const FLASH_BACKWARD_ADD_DQ: i32 = 1;
pub const FLASH_BACKWARD_ADD_DK: i32 = 2;
pub const FLASH_BACKWARD_ADD_DV: i32 = 4;
pub const FLASH_QUANTISE_TOKENS: i32 = 256;
pub const FLASH_QUANTISE_MINUS_MEAN: i32 = 512;
pub const FLASH_QUANTISE_HADAMARD: i32 = 1024;
pub const FLASH_ROTARY_INTERLEAVED: u32 = 1;
pub const FLASH_ROTARY_Q_AT_START: u32 = 2;

pub type flash_status_t = i32;
#[repr(C)]
#[derive(Clone, Copy)]
pub struct flash_config_t {
    pub struct_size: u32,
    pub arch: i32,
    pub op: i32,
    pub dtype: i32,
    pub d_head: i32,
    pub B_r: i32,
    pub B_c: i32,
    pub n_warps: i32,
    pub async_copy: i32,
    pub eager_load_blocks: i32,
    pub swizzled: i32,
    pub Q_mma_load_K_fragments: i32,
    pub K_mma_load_K_fragments: i32,
    pub V_mma_load_K_fragments: i32,
    pub mma_double_buffer_loads: i32,
    pub optimized_softmax: i32,
    pub features: i32,
    pub n_stages: i32,
    pub overlap: i32,
    pub ping_pong: i32,
    pub persistent: i32,
    pub longest_first: i32,
    pub fixed_reference: i32,
    pub d_head_v: i32,
    pub operand_dtype: i32,
}
impl flash_config_t {
    pub const INIT: Self = Self { struct_size: size_of::<Self>() as u32, ..unsafe { core::mem::zeroed() } };
}

#[repr(C)]
pub struct flash_kernel_t {
    _opaque: [u8; 0],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct flash_kernel_resources_t {
    pub struct_size: u32,
    pub threads: i32,
    pub registers: i32,
    pub local_memory: i32,
    pub shared_memory: i32,
    pub blocks_per_multiprocessor: i32,
}
impl flash_kernel_resources_t {
    pub const INIT: Self = Self { struct_size: size_of::<Self>() as u32, ..unsafe { core::mem::zeroed() } };
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct flash_device_info_t {
    pub struct_size: u32,
    pub device: i32,
    pub name: [c_char; 64],
    pub isa: u32,
    pub n_threads: i32,
    pub compute_capability: i32,
    pub n_multiprocessors: i32,
    pub shared_memory_per_block: i32,
    pub reserved: i32,
}
impl flash_device_info_t {
    pub const INIT: Self = Self { struct_size: size_of::<Self>() as u32, ..unsafe { core::mem::zeroed() } };
}

pub type flash_task_t = Option<unsafe extern "C" fn(argument: *mut c_void, index: i32)>;
pub type flash_parallel_for_t = Option<unsafe extern "C" fn(context: *mut c_void, n_tasks: i32, task: flash_task_t, argument: *mut c_void)>;
#[repr(C)]
#[derive(Clone, Copy)]
pub struct flash_executor_t {
    pub struct_size: u32,
    pub n_workers: i32,
    pub run: flash_parallel_for_t,
    pub context: *mut c_void,
}
impl flash_executor_t {
    pub const INIT: Self = Self { struct_size: size_of::<Self>() as u32, ..unsafe { core::mem::zeroed() } };
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct flash_team_t {
    pub reserved: [u64; 48],
}
impl flash_team_t {
    pub const INIT: Self = unsafe { core::mem::zeroed() };
}

pub type flash_stream_t = *mut c_void;
#[repr(C)]
#[derive(Clone, Copy)]
pub struct flash_tensor_t {
    pub data: *mut c_void,
    pub stride_batch: i64,
    pub stride_seq: i64,
    pub stride_head: i64,
    pub dtype: i32,
    pub reserved32: i32,
    pub reserved: [u64; 4],
}
impl flash_tensor_t {
    pub const INIT: Self = unsafe { core::mem::zeroed() };
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct flash_paging_t {
    pub struct_size: u32,
    pub reserved32: i32,
    pub page_size: i64,
    pub n_pages: i64,
    pub page_table: *const i32,
    pub page_table_stride: i64,
    pub page_indptr: *const i32,
    pub page_rows: *const i32,
    pub v_page_table: *const i32,
    pub page_rows64: *const i64,
}
impl flash_paging_t {
    pub const INIT: Self = Self { struct_size: size_of::<Self>() as u32, ..unsafe { core::mem::zeroed() } };
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct flash_quant_t {
    pub struct_size: u32,
    pub reserved32: i32,
    pub k_scale: *const f32,
    pub v_scale: *const f32,
    pub k_scale_stride_batch: i64,
    pub k_scale_stride_head: i64,
    pub v_scale_stride_batch: i64,
    pub v_scale_stride_head: i64,
    pub q_scale: *const f32,
    pub q_scale_stride_batch: i64,
    pub q_scale_stride_head: i64,
    pub q_token_scale: *const f32,
    pub q_token_scale_stride_batch: i64,
    pub q_token_scale_stride_seq: i64,
    pub q_token_scale_stride_head: i64,
    pub reserved: [u64; 1],
}
impl flash_quant_t {
    pub const INIT: Self = Self { struct_size: size_of::<Self>() as u32, ..unsafe { core::mem::zeroed() } };
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct flash_mask_t {
    pub struct_size: u32,
    pub kind: i32,
    pub dtype: i32,
    pub flags: u32,
    pub data: *const c_void,
    pub stride_batch: i64,
    pub stride_head: i64,
    pub stride_query: i64,
    pub stride_key: i64,
    pub first_key: i64,
    pub n_keys: i64,
    pub head_scale: *const f32,
    pub block_q: i64,
    pub block_k: i64,
}
impl flash_mask_t {
    pub const INIT: Self = Self { struct_size: size_of::<Self>() as u32, ..unsafe { core::mem::zeroed() } };
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct flash_dropout_t {
    pub struct_size: u32,
    pub p: f32,
    pub seed: u64,
    pub offset: u64,
    pub seed_ptr: *const u64,
    pub offset_ptr: *const u64,
}
impl flash_dropout_t {
    pub const INIT: Self = Self { struct_size: size_of::<Self>() as u32, ..unsafe { core::mem::zeroed() } };
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct flash_forward_args_t {
    pub struct_size: u32,
    pub device: i32,
    pub dtype: i32,
    pub flags: u32,
    pub q: flash_tensor_t,
    pub k: flash_tensor_t,
    pub v: flash_tensor_t,
    pub o: flash_tensor_t,
    pub lse: *mut f32,
    pub lse_stride_batch: i64,
    pub lse_stride_head: i64,
    pub lse_stride_seq: i64,
    pub cu_seqlens_q: *const i32,
    pub cu_seqlens_k: *const i32,
    pub seqused_k: *const i32,
    pub batch: i64,
    pub seqlen_q: i64,
    pub seqlen_k: i64,
    pub n_heads: i64,
    pub n_heads_kv: i64,
    pub d_head: i64,
    pub window_left: i64,
    pub window_right: i64,
    pub softmax_scale: f32,
    pub softcap: f32,
    pub workspace: *mut c_void,
    pub workspace_size: u64,
    pub executor: *const flash_executor_t,
    pub paging: *const flash_paging_t,
    pub seqused_q: *const i32,
    pub quant: *const flash_quant_t,
    pub sinks: *const f32,
    pub alibi_slopes: *const f32,
    pub alibi_stride_batch: i64,
    pub mask: *const flash_mask_t,
    pub d_head_v: i64,
    pub attention_chunk: i64,
    pub leftpad_k: *const i32,
    pub n_multiprocessors: i32,
    pub reserved32: i32,
    pub diagonal_offset: i64,
    pub dropout: *const flash_dropout_t,
    pub reserved: [u64; 4],
}
impl flash_forward_args_t {
    pub const INIT: Self = Self { struct_size: size_of::<Self>() as u32, ..unsafe { core::mem::zeroed() } };
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct flash_backward_args_t {
    pub struct_size: u32,
    pub flags: u32,
    pub forward: *const flash_forward_args_t,
    pub d_o: flash_tensor_t,
    pub d_lse: *const f32,
    pub d_lse_stride_batch: i64,
    pub d_lse_stride_head: i64,
    pub d_lse_stride_seq: i64,
    pub dq: flash_tensor_t,
    pub dk: flash_tensor_t,
    pub dv: flash_tensor_t,
    pub d_sinks: *mut f32,
    pub total_q: i64,
    pub total_k: i64,
    pub dq_kernel: *const flash_kernel_t,
    pub dkv_kernel: *const flash_kernel_t,
    pub workspace: *mut c_void,
    pub workspace_size: u64,
    pub reserved: [u64; 8],
}
impl flash_backward_args_t {
    pub const INIT: Self = Self { struct_size: size_of::<Self>() as u32, ..unsafe { core::mem::zeroed() } };
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct flash_combine_args_t {
    pub struct_size: u32,
    pub device: i32,
    pub dtype: i32,
    pub flags: u32,
    pub o_partial: flash_tensor_t,
    pub stride_partial: i64,
    pub o_partials: *const *const c_void,
    pub lse_partial: *const f32,
    pub lse_partials: *const *const f32,
    pub lse_partial_stride: i64,
    pub lse_partial_stride_batch: i64,
    pub lse_partial_stride_head: i64,
    pub lse_partial_stride_seq: i64,
    pub o: flash_tensor_t,
    pub lse: *mut f32,
    pub lse_stride_batch: i64,
    pub lse_stride_head: i64,
    pub lse_stride_seq: i64,
    pub n_partials: i64,
    pub batch: i64,
    pub seqlen_q: i64,
    pub n_heads: i64,
    pub d_head: i64,
    pub executor: *const flash_executor_t,
    pub sinks: *const f32,
}
impl flash_combine_args_t {
    pub const INIT: Self = Self { struct_size: size_of::<Self>() as u32, ..unsafe { core::mem::zeroed() } };
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct flash_quantise_args_t {
    pub struct_size: u32,
    pub device: i32,
    pub reserved32: i32,
    pub flags: u32,
    pub x: flash_tensor_t,
    pub codes: flash_tensor_t,
    pub scale: *mut f32,
    pub mean: *mut f32,
    pub cu_seqlens: *const i32,
    pub batch: i64,
    pub seqlen: i64,
    pub n_heads: i64,
    pub n_scales: i64,
    pub d_head: i64,
    pub executor: *const flash_executor_t,
    pub reserved: [u64; 4],
}
impl flash_quantise_args_t {
    pub const INIT: Self = Self { struct_size: size_of::<Self>() as u32, ..unsafe { core::mem::zeroed() } };
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct flash_rotary_t {
    pub struct_size: u32,
    pub dtype: i32,
    pub flags: u32,
    pub reserved32: i32,
    pub cos: *const c_void,
    pub sin: *const c_void,
    pub stride_position: i64,
    pub n_positions: i64,
    pub rotary_dim: i64,
    pub positions: *const i64,
    pub start: *const i32,
}
impl flash_rotary_t {
    pub const INIT: Self = Self { struct_size: size_of::<Self>() as u32, ..unsafe { core::mem::zeroed() } };
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct flash_kv_append_args_t {
    pub struct_size: u32,
    pub device: i32,
    pub dtype: i32,
    pub flags: u32,
    pub k_new: flash_tensor_t,
    pub v_new: flash_tensor_t,
    pub k: flash_tensor_t,
    pub v: flash_tensor_t,
    pub q: flash_tensor_t,
    pub q_out: flash_tensor_t,
    pub cu_seqlens_new: *const i32,
    pub cu_seqlens_q: *const i32,
    pub seqused_k: *const i32,
    pub seqused_k_out: *mut i32,
    pub slot_mapping: *const i64,
    pub batch: i64,
    pub seqlen_new: i64,
    pub seqlen_k: i64,
    pub seqlen_q: i64,
    pub n_heads: i64,
    pub n_heads_kv: i64,
    pub d_head: i64,
    pub paging: *const flash_paging_t,
    pub rotary: *const flash_rotary_t,
    pub quant: *const flash_quant_t,
    pub executor: *const flash_executor_t,
    pub d_head_v: i64,
}
impl flash_kv_append_args_t {
    pub const INIT: Self = Self { struct_size: size_of::<Self>() as u32, ..unsafe { core::mem::zeroed() } };
}

extern "C" {
    pub fn flash_status_string(status: flash_status_t) -> *const c_char;
    pub fn flash_last_error() -> *const c_char;
    pub fn flash_last_status() -> flash_status_t;
    pub fn flash_version() -> *const c_char;
    pub fn flash_version_number() -> i32;
    pub fn flash_abi_version() -> i32;
    pub fn flash_config_format(config: *const flash_config_t, text: *mut c_char, size: usize) -> flash_status_t;
    pub fn flash_config_parse(text: *const c_char, config: *mut flash_config_t) -> flash_status_t;
    pub fn flash_lookup_kernel(config: *const flash_config_t) -> *const flash_kernel_t;
    pub fn flash_kernel_count() -> i32;
    pub fn flash_kernel_at(index: i32) -> *const flash_kernel_t;
    pub fn flash_kernel_config(kernel: *const flash_kernel_t, config: *mut flash_config_t) -> flash_status_t;
    pub fn flash_kernel_name(kernel: *const flash_kernel_t) -> *const c_char;
    pub fn flash_kernel_resources(kernel: *const flash_kernel_t, device: i32, resources: *mut flash_kernel_resources_t) -> flash_status_t;
    pub fn flash_device_info(device: i32, info: *mut flash_device_info_t) -> flash_status_t;
    pub fn flash_set_num_threads(n_threads: i32) -> flash_status_t;
    pub fn flash_num_threads() -> i32;
    pub fn flash_set_parallel_for(run: flash_parallel_for_t, context: *mut c_void, n_workers: i32) -> flash_status_t;
    pub fn flash_team_init(team: *mut flash_team_t, n_threads: i32) -> flash_status_t;
    pub fn flash_team_destroy(team: *mut flash_team_t);
    pub fn flash_team_run(context: *mut c_void, n_tasks: i32, task: flash_task_t, argument: *mut c_void);
    pub fn flash_team_help(team: *mut flash_team_t);
    pub fn flash_team_finish(team: *mut flash_team_t);
    pub fn flash_forward(args: *const flash_forward_args_t, kernel: *const flash_kernel_t, stream: flash_stream_t) -> flash_status_t;
    pub fn flash_workspace_size(args: *const flash_forward_args_t, kernel: *const flash_kernel_t, size: *mut u64) -> flash_status_t;
    pub fn flash_prepare(args: *const flash_forward_args_t, kernel: *const flash_kernel_t) -> flash_status_t;
    pub fn flash_select_kernel(args: *const flash_forward_args_t, kernel: *mut *const flash_kernel_t, reason: *mut c_char, reason_size: usize) -> flash_status_t;
    pub fn flash_query_support(args: *const flash_forward_args_t, kernel: *const flash_kernel_t, reason: *mut c_char, reason_size: usize) -> flash_status_t;
    pub fn flash_backward(args: *const flash_backward_args_t, stream: flash_stream_t) -> flash_status_t;
    pub fn flash_backward_workspace_size(args: *const flash_backward_args_t, least: *mut u64, best: *mut u64) -> flash_status_t;
    pub fn flash_backward_prepare(args: *const flash_backward_args_t) -> flash_status_t;
    pub fn flash_backward_select_kernels(args: *const flash_backward_args_t, dq_kernel: *mut *const flash_kernel_t, dkv_kernel: *mut *const flash_kernel_t, reason: *mut c_char, reason_size: usize) -> flash_status_t;
    pub fn flash_backward_query_support(args: *const flash_backward_args_t, reason: *mut c_char, reason_size: usize) -> flash_status_t;
    pub fn flash_measure(args: *const flash_forward_args_t, kernels: *const *const flash_kernel_t, n_kernels: i32, n_launches: i32, stream: flash_stream_t, seconds: *mut f64) -> flash_status_t;
    pub fn flash_backward_measure(args: *const flash_backward_args_t, kernels: *const *const flash_kernel_t, n_kernels: i32, n_launches: i32, stream: flash_stream_t, seconds: *mut f64) -> flash_status_t;
    pub fn flash_tuning_format(args: *const flash_forward_args_t, kernel: *const flash_kernel_t, seconds: f64, text: *mut c_char, size: usize) -> flash_status_t;
    pub fn flash_set_tuning(text: *const c_char) -> flash_status_t;
    pub fn flash_combine(args: *const flash_combine_args_t, stream: flash_stream_t) -> flash_status_t;
    pub fn flash_quantise(args: *const flash_quantise_args_t, stream: flash_stream_t) -> flash_status_t;
    pub fn flash_kv_append(args: *const flash_kv_append_args_t, stream: flash_stream_t) -> flash_status_t;
}

const _: () = {
    assert!(size_of::<flash_status_t>() == 4);
    assert!(size_of::<flash_stream_t>() == 8);
    assert!(size_of::<flash_task_t>() == 8);
    assert!(size_of::<flash_parallel_for_t>() == 8);
    assert!(size_of::<flash_config_t>() == 100);
    assert!(offset_of!(flash_config_t, struct_size) == 0);
    assert!(offset_of!(flash_config_t, arch) == 4);
    assert!(offset_of!(flash_config_t, op) == 8);
    assert!(offset_of!(flash_config_t, dtype) == 12);
    assert!(offset_of!(flash_config_t, d_head) == 16);
    assert!(offset_of!(flash_config_t, B_r) == 20);
    assert!(offset_of!(flash_config_t, B_c) == 24);
    assert!(offset_of!(flash_config_t, n_warps) == 28);
    assert!(offset_of!(flash_config_t, async_copy) == 32);
    assert!(offset_of!(flash_config_t, eager_load_blocks) == 36);
    assert!(offset_of!(flash_config_t, swizzled) == 40);
    assert!(offset_of!(flash_config_t, Q_mma_load_K_fragments) == 44);
    assert!(offset_of!(flash_config_t, K_mma_load_K_fragments) == 48);
    assert!(offset_of!(flash_config_t, V_mma_load_K_fragments) == 52);
    assert!(offset_of!(flash_config_t, mma_double_buffer_loads) == 56);
    assert!(offset_of!(flash_config_t, optimized_softmax) == 60);
    assert!(offset_of!(flash_config_t, features) == 64);
    assert!(offset_of!(flash_config_t, n_stages) == 68);
    assert!(offset_of!(flash_config_t, overlap) == 72);
    assert!(offset_of!(flash_config_t, ping_pong) == 76);
    assert!(offset_of!(flash_config_t, persistent) == 80);
    assert!(offset_of!(flash_config_t, longest_first) == 84);
    assert!(offset_of!(flash_config_t, fixed_reference) == 88);
    assert!(offset_of!(flash_config_t, d_head_v) == 92);
    assert!(offset_of!(flash_config_t, operand_dtype) == 96);
    assert!(size_of::<flash_kernel_resources_t>() == 24);
    assert!(offset_of!(flash_kernel_resources_t, struct_size) == 0);
    assert!(offset_of!(flash_kernel_resources_t, threads) == 4);
    assert!(offset_of!(flash_kernel_resources_t, registers) == 8);
    assert!(offset_of!(flash_kernel_resources_t, local_memory) == 12);
    assert!(offset_of!(flash_kernel_resources_t, shared_memory) == 16);
    assert!(offset_of!(flash_kernel_resources_t, blocks_per_multiprocessor) == 20);
    assert!(size_of::<flash_device_info_t>() == 96);
    assert!(offset_of!(flash_device_info_t, struct_size) == 0);
    assert!(offset_of!(flash_device_info_t, device) == 4);
    assert!(offset_of!(flash_device_info_t, name) == 8);
    assert!(offset_of!(flash_device_info_t, isa) == 72);
    assert!(offset_of!(flash_device_info_t, n_threads) == 76);
    assert!(offset_of!(flash_device_info_t, compute_capability) == 80);
    assert!(offset_of!(flash_device_info_t, n_multiprocessors) == 84);
    assert!(offset_of!(flash_device_info_t, shared_memory_per_block) == 88);
    assert!(offset_of!(flash_device_info_t, reserved) == 92);
    assert!(size_of::<flash_executor_t>() == 24);
    assert!(offset_of!(flash_executor_t, struct_size) == 0);
    assert!(offset_of!(flash_executor_t, n_workers) == 4);
    assert!(offset_of!(flash_executor_t, run) == 8);
    assert!(offset_of!(flash_executor_t, context) == 16);
    assert!(size_of::<flash_team_t>() == 384);
    assert!(offset_of!(flash_team_t, reserved) == 0);
    assert!(size_of::<flash_tensor_t>() == 72);
    assert!(offset_of!(flash_tensor_t, data) == 0);
    assert!(offset_of!(flash_tensor_t, stride_batch) == 8);
    assert!(offset_of!(flash_tensor_t, stride_seq) == 16);
    assert!(offset_of!(flash_tensor_t, stride_head) == 24);
    assert!(offset_of!(flash_tensor_t, dtype) == 32);
    assert!(offset_of!(flash_tensor_t, reserved32) == 36);
    assert!(offset_of!(flash_tensor_t, reserved) == 40);
    assert!(size_of::<flash_paging_t>() == 72);
    assert!(offset_of!(flash_paging_t, struct_size) == 0);
    assert!(offset_of!(flash_paging_t, reserved32) == 4);
    assert!(offset_of!(flash_paging_t, page_size) == 8);
    assert!(offset_of!(flash_paging_t, n_pages) == 16);
    assert!(offset_of!(flash_paging_t, page_table) == 24);
    assert!(offset_of!(flash_paging_t, page_table_stride) == 32);
    assert!(offset_of!(flash_paging_t, page_indptr) == 40);
    assert!(offset_of!(flash_paging_t, page_rows) == 48);
    assert!(offset_of!(flash_paging_t, v_page_table) == 56);
    assert!(offset_of!(flash_paging_t, page_rows64) == 64);
    assert!(size_of::<flash_quant_t>() == 120);
    assert!(offset_of!(flash_quant_t, struct_size) == 0);
    assert!(offset_of!(flash_quant_t, reserved32) == 4);
    assert!(offset_of!(flash_quant_t, k_scale) == 8);
    assert!(offset_of!(flash_quant_t, v_scale) == 16);
    assert!(offset_of!(flash_quant_t, k_scale_stride_batch) == 24);
    assert!(offset_of!(flash_quant_t, k_scale_stride_head) == 32);
    assert!(offset_of!(flash_quant_t, v_scale_stride_batch) == 40);
    assert!(offset_of!(flash_quant_t, v_scale_stride_head) == 48);
    assert!(offset_of!(flash_quant_t, q_scale) == 56);
    assert!(offset_of!(flash_quant_t, q_scale_stride_batch) == 64);
    assert!(offset_of!(flash_quant_t, q_scale_stride_head) == 72);
    assert!(offset_of!(flash_quant_t, q_token_scale) == 80);
    assert!(offset_of!(flash_quant_t, q_token_scale_stride_batch) == 88);
    assert!(offset_of!(flash_quant_t, q_token_scale_stride_seq) == 96);
    assert!(offset_of!(flash_quant_t, q_token_scale_stride_head) == 104);
    assert!(offset_of!(flash_quant_t, reserved) == 112);
    assert!(size_of::<flash_mask_t>() == 96);
    assert!(offset_of!(flash_mask_t, struct_size) == 0);
    assert!(offset_of!(flash_mask_t, kind) == 4);
    assert!(offset_of!(flash_mask_t, dtype) == 8);
    assert!(offset_of!(flash_mask_t, flags) == 12);
    assert!(offset_of!(flash_mask_t, data) == 16);
    assert!(offset_of!(flash_mask_t, stride_batch) == 24);
    assert!(offset_of!(flash_mask_t, stride_head) == 32);
    assert!(offset_of!(flash_mask_t, stride_query) == 40);
    assert!(offset_of!(flash_mask_t, stride_key) == 48);
    assert!(offset_of!(flash_mask_t, first_key) == 56);
    assert!(offset_of!(flash_mask_t, n_keys) == 64);
    assert!(offset_of!(flash_mask_t, head_scale) == 72);
    assert!(offset_of!(flash_mask_t, block_q) == 80);
    assert!(offset_of!(flash_mask_t, block_k) == 88);
    assert!(size_of::<flash_dropout_t>() == 40);
    assert!(offset_of!(flash_dropout_t, struct_size) == 0);
    assert!(offset_of!(flash_dropout_t, p) == 4);
    assert!(offset_of!(flash_dropout_t, seed) == 8);
    assert!(offset_of!(flash_dropout_t, offset) == 16);
    assert!(offset_of!(flash_dropout_t, seed_ptr) == 24);
    assert!(offset_of!(flash_dropout_t, offset_ptr) == 32);
    assert!(size_of::<flash_forward_args_t>() == 592);
    assert!(offset_of!(flash_forward_args_t, struct_size) == 0);
    assert!(offset_of!(flash_forward_args_t, device) == 4);
    assert!(offset_of!(flash_forward_args_t, dtype) == 8);
    assert!(offset_of!(flash_forward_args_t, flags) == 12);
    assert!(offset_of!(flash_forward_args_t, q) == 16);
    assert!(offset_of!(flash_forward_args_t, k) == 88);
    assert!(offset_of!(flash_forward_args_t, v) == 160);
    assert!(offset_of!(flash_forward_args_t, o) == 232);
    assert!(offset_of!(flash_forward_args_t, lse) == 304);
    assert!(offset_of!(flash_forward_args_t, lse_stride_batch) == 312);
    assert!(offset_of!(flash_forward_args_t, lse_stride_head) == 320);
    assert!(offset_of!(flash_forward_args_t, lse_stride_seq) == 328);
    assert!(offset_of!(flash_forward_args_t, cu_seqlens_q) == 336);
    assert!(offset_of!(flash_forward_args_t, cu_seqlens_k) == 344);
    assert!(offset_of!(flash_forward_args_t, seqused_k) == 352);
    assert!(offset_of!(flash_forward_args_t, batch) == 360);
    assert!(offset_of!(flash_forward_args_t, seqlen_q) == 368);
    assert!(offset_of!(flash_forward_args_t, seqlen_k) == 376);
    assert!(offset_of!(flash_forward_args_t, n_heads) == 384);
    assert!(offset_of!(flash_forward_args_t, n_heads_kv) == 392);
    assert!(offset_of!(flash_forward_args_t, d_head) == 400);
    assert!(offset_of!(flash_forward_args_t, window_left) == 408);
    assert!(offset_of!(flash_forward_args_t, window_right) == 416);
    assert!(offset_of!(flash_forward_args_t, softmax_scale) == 424);
    assert!(offset_of!(flash_forward_args_t, softcap) == 428);
    assert!(offset_of!(flash_forward_args_t, workspace) == 432);
    assert!(offset_of!(flash_forward_args_t, workspace_size) == 440);
    assert!(offset_of!(flash_forward_args_t, executor) == 448);
    assert!(offset_of!(flash_forward_args_t, paging) == 456);
    assert!(offset_of!(flash_forward_args_t, seqused_q) == 464);
    assert!(offset_of!(flash_forward_args_t, quant) == 472);
    assert!(offset_of!(flash_forward_args_t, sinks) == 480);
    assert!(offset_of!(flash_forward_args_t, alibi_slopes) == 488);
    assert!(offset_of!(flash_forward_args_t, alibi_stride_batch) == 496);
    assert!(offset_of!(flash_forward_args_t, mask) == 504);
    assert!(offset_of!(flash_forward_args_t, d_head_v) == 512);
    assert!(offset_of!(flash_forward_args_t, attention_chunk) == 520);
    assert!(offset_of!(flash_forward_args_t, leftpad_k) == 528);
    assert!(offset_of!(flash_forward_args_t, n_multiprocessors) == 536);
    assert!(offset_of!(flash_forward_args_t, reserved32) == 540);
    assert!(offset_of!(flash_forward_args_t, diagonal_offset) == 544);
    assert!(offset_of!(flash_forward_args_t, dropout) == 552);
    assert!(offset_of!(flash_forward_args_t, reserved) == 560);
    assert!(size_of::<flash_backward_args_t>() == 456);
    assert!(offset_of!(flash_backward_args_t, struct_size) == 0);
    assert!(offset_of!(flash_backward_args_t, flags) == 4);
    assert!(offset_of!(flash_backward_args_t, forward) == 8);
    assert!(offset_of!(flash_backward_args_t, d_o) == 16);
    assert!(offset_of!(flash_backward_args_t, d_lse) == 88);
    assert!(offset_of!(flash_backward_args_t, d_lse_stride_batch) == 96);
    assert!(offset_of!(flash_backward_args_t, d_lse_stride_head) == 104);
    assert!(offset_of!(flash_backward_args_t, d_lse_stride_seq) == 112);
    assert!(offset_of!(flash_backward_args_t, dq) == 120);
    assert!(offset_of!(flash_backward_args_t, dk) == 192);
    assert!(offset_of!(flash_backward_args_t, dv) == 264);
    assert!(offset_of!(flash_backward_args_t, d_sinks) == 336);
    assert!(offset_of!(flash_backward_args_t, total_q) == 344);
    assert!(offset_of!(flash_backward_args_t, total_k) == 352);
    assert!(offset_of!(flash_backward_args_t, dq_kernel) == 360);
    assert!(offset_of!(flash_backward_args_t, dkv_kernel) == 368);
    assert!(offset_of!(flash_backward_args_t, workspace) == 376);
    assert!(offset_of!(flash_backward_args_t, workspace_size) == 384);
    assert!(offset_of!(flash_backward_args_t, reserved) == 392);
    assert!(size_of::<flash_combine_args_t>() == 312);
    assert!(offset_of!(flash_combine_args_t, struct_size) == 0);
    assert!(offset_of!(flash_combine_args_t, device) == 4);
    assert!(offset_of!(flash_combine_args_t, dtype) == 8);
    assert!(offset_of!(flash_combine_args_t, flags) == 12);
    assert!(offset_of!(flash_combine_args_t, o_partial) == 16);
    assert!(offset_of!(flash_combine_args_t, stride_partial) == 88);
    assert!(offset_of!(flash_combine_args_t, o_partials) == 96);
    assert!(offset_of!(flash_combine_args_t, lse_partial) == 104);
    assert!(offset_of!(flash_combine_args_t, lse_partials) == 112);
    assert!(offset_of!(flash_combine_args_t, lse_partial_stride) == 120);
    assert!(offset_of!(flash_combine_args_t, lse_partial_stride_batch) == 128);
    assert!(offset_of!(flash_combine_args_t, lse_partial_stride_head) == 136);
    assert!(offset_of!(flash_combine_args_t, lse_partial_stride_seq) == 144);
    assert!(offset_of!(flash_combine_args_t, o) == 152);
    assert!(offset_of!(flash_combine_args_t, lse) == 224);
    assert!(offset_of!(flash_combine_args_t, lse_stride_batch) == 232);
    assert!(offset_of!(flash_combine_args_t, lse_stride_head) == 240);
    assert!(offset_of!(flash_combine_args_t, lse_stride_seq) == 248);
    assert!(offset_of!(flash_combine_args_t, n_partials) == 256);
    assert!(offset_of!(flash_combine_args_t, batch) == 264);
    assert!(offset_of!(flash_combine_args_t, seqlen_q) == 272);
    assert!(offset_of!(flash_combine_args_t, n_heads) == 280);
    assert!(offset_of!(flash_combine_args_t, d_head) == 288);
    assert!(offset_of!(flash_combine_args_t, executor) == 296);
    assert!(offset_of!(flash_combine_args_t, sinks) == 304);
    assert!(size_of::<flash_quantise_args_t>() == 264);
    assert!(offset_of!(flash_quantise_args_t, struct_size) == 0);
    assert!(offset_of!(flash_quantise_args_t, device) == 4);
    assert!(offset_of!(flash_quantise_args_t, reserved32) == 8);
    assert!(offset_of!(flash_quantise_args_t, flags) == 12);
    assert!(offset_of!(flash_quantise_args_t, x) == 16);
    assert!(offset_of!(flash_quantise_args_t, codes) == 88);
    assert!(offset_of!(flash_quantise_args_t, scale) == 160);
    assert!(offset_of!(flash_quantise_args_t, mean) == 168);
    assert!(offset_of!(flash_quantise_args_t, cu_seqlens) == 176);
    assert!(offset_of!(flash_quantise_args_t, batch) == 184);
    assert!(offset_of!(flash_quantise_args_t, seqlen) == 192);
    assert!(offset_of!(flash_quantise_args_t, n_heads) == 200);
    assert!(offset_of!(flash_quantise_args_t, n_scales) == 208);
    assert!(offset_of!(flash_quantise_args_t, d_head) == 216);
    assert!(offset_of!(flash_quantise_args_t, executor) == 224);
    assert!(offset_of!(flash_quantise_args_t, reserved) == 232);
    assert!(size_of::<flash_rotary_t>() == 72);
    assert!(offset_of!(flash_rotary_t, struct_size) == 0);
    assert!(offset_of!(flash_rotary_t, dtype) == 4);
    assert!(offset_of!(flash_rotary_t, flags) == 8);
    assert!(offset_of!(flash_rotary_t, reserved32) == 12);
    assert!(offset_of!(flash_rotary_t, cos) == 16);
    assert!(offset_of!(flash_rotary_t, sin) == 24);
    assert!(offset_of!(flash_rotary_t, stride_position) == 32);
    assert!(offset_of!(flash_rotary_t, n_positions) == 40);
    assert!(offset_of!(flash_rotary_t, rotary_dim) == 48);
    assert!(offset_of!(flash_rotary_t, positions) == 56);
    assert!(offset_of!(flash_rotary_t, start) == 64);
    assert!(size_of::<flash_kv_append_args_t>() == 584);
    assert!(offset_of!(flash_kv_append_args_t, struct_size) == 0);
    assert!(offset_of!(flash_kv_append_args_t, device) == 4);
    assert!(offset_of!(flash_kv_append_args_t, dtype) == 8);
    assert!(offset_of!(flash_kv_append_args_t, flags) == 12);
    assert!(offset_of!(flash_kv_append_args_t, k_new) == 16);
    assert!(offset_of!(flash_kv_append_args_t, v_new) == 88);
    assert!(offset_of!(flash_kv_append_args_t, k) == 160);
    assert!(offset_of!(flash_kv_append_args_t, v) == 232);
    assert!(offset_of!(flash_kv_append_args_t, q) == 304);
    assert!(offset_of!(flash_kv_append_args_t, q_out) == 376);
    assert!(offset_of!(flash_kv_append_args_t, cu_seqlens_new) == 448);
    assert!(offset_of!(flash_kv_append_args_t, cu_seqlens_q) == 456);
    assert!(offset_of!(flash_kv_append_args_t, seqused_k) == 464);
    assert!(offset_of!(flash_kv_append_args_t, seqused_k_out) == 472);
    assert!(offset_of!(flash_kv_append_args_t, slot_mapping) == 480);
    assert!(offset_of!(flash_kv_append_args_t, batch) == 488);
    assert!(offset_of!(flash_kv_append_args_t, seqlen_new) == 496);
    assert!(offset_of!(flash_kv_append_args_t, seqlen_k) == 504);
    assert!(offset_of!(flash_kv_append_args_t, seqlen_q) == 512);
    assert!(offset_of!(flash_kv_append_args_t, n_heads) == 520);
    assert!(offset_of!(flash_kv_append_args_t, n_heads_kv) == 528);
    assert!(offset_of!(flash_kv_append_args_t, d_head) == 536);
    assert!(offset_of!(flash_kv_append_args_t, paging) == 544);
    assert!(offset_of!(flash_kv_append_args_t, rotary) == 552);
    assert!(offset_of!(flash_kv_append_args_t, quant) == 560);
    assert!(offset_of!(flash_kv_append_args_t, executor) == 568);
    assert!(offset_of!(flash_kv_append_args_t, d_head_v) == 576);
};
