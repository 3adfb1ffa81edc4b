/*
 * Prints what a built client depends on: sizes and offsets of every public struct, and the value
 * of every public enumerator and version macro. check_layout.py compares it with layout.txt.
 */
#include "flashattn.h"

#include <stdio.h>

#define TYPE(type) printf("%s size %zu\n", #type, sizeof(type))
#define MEMBER(type, member)                                                                       \
    printf("%s.%s offset %zu size %zu\n", #type, #member, offsetof(type, member),                  \
           sizeof(((type *)0)->member))
#define VALUE(name) printf("%s = %ld\n", #name, (long)(name))

static void print_types(void) {
    TYPE(flash_status_t);
    TYPE(flash_stream_t);
    TYPE(flash_task_t);
    TYPE(flash_parallel_for_t);
}

static void print_config(void) {
    TYPE(flash_config_t);
    MEMBER(flash_config_t, struct_size);
    MEMBER(flash_config_t, arch);
    MEMBER(flash_config_t, dtype);
    MEMBER(flash_config_t, d_head);
    MEMBER(flash_config_t, B_r);
    MEMBER(flash_config_t, B_c);
    MEMBER(flash_config_t, n_warps);
    MEMBER(flash_config_t, async_copy);
    MEMBER(flash_config_t, eager_load_blocks);
    MEMBER(flash_config_t, swizzled);
    MEMBER(flash_config_t, Q_mma_load_K_fragments);
    MEMBER(flash_config_t, K_mma_load_K_fragments);
    MEMBER(flash_config_t, V_mma_load_K_fragments);
    MEMBER(flash_config_t, mma_double_buffer_loads);
    MEMBER(flash_config_t, optimized_softmax);
    MEMBER(flash_config_t, features);
    MEMBER(flash_config_t, n_stages);
    MEMBER(flash_config_t, overlap);
    MEMBER(flash_config_t, ping_pong);
    MEMBER(flash_config_t, persistent);
    MEMBER(flash_config_t, longest_first);
    MEMBER(flash_config_t, fixed_reference);
}

static void print_device_info(void) {
    TYPE(flash_device_info_t);
    MEMBER(flash_device_info_t, struct_size);
    MEMBER(flash_device_info_t, device);
    MEMBER(flash_device_info_t, name);
    MEMBER(flash_device_info_t, isa);
    MEMBER(flash_device_info_t, n_threads);
    MEMBER(flash_device_info_t, compute_capability);
    MEMBER(flash_device_info_t, n_multiprocessors);
    MEMBER(flash_device_info_t, shared_memory_per_block);
    MEMBER(flash_device_info_t, reserved);
}

static void print_kernel_resources(void) {
    TYPE(flash_kernel_resources_t);
    MEMBER(flash_kernel_resources_t, struct_size);
    MEMBER(flash_kernel_resources_t, threads);
    MEMBER(flash_kernel_resources_t, registers);
    MEMBER(flash_kernel_resources_t, local_memory);
    MEMBER(flash_kernel_resources_t, shared_memory);
    MEMBER(flash_kernel_resources_t, blocks_per_multiprocessor);
}

static void print_tensor(void) {
    TYPE(flash_tensor_t);
    MEMBER(flash_tensor_t, data);
    MEMBER(flash_tensor_t, stride_batch);
    MEMBER(flash_tensor_t, stride_seq);
    MEMBER(flash_tensor_t, stride_head);
    MEMBER(flash_tensor_t, reserved);
}

static void print_forward_args(void) {
    TYPE(flash_forward_args_t);
    MEMBER(flash_forward_args_t, struct_size);
    MEMBER(flash_forward_args_t, device);
    MEMBER(flash_forward_args_t, dtype);
    MEMBER(flash_forward_args_t, flags);
    MEMBER(flash_forward_args_t, q);
    MEMBER(flash_forward_args_t, k);
    MEMBER(flash_forward_args_t, v);
    MEMBER(flash_forward_args_t, o);
    MEMBER(flash_forward_args_t, lse);
    MEMBER(flash_forward_args_t, cu_seqlens_q);
    MEMBER(flash_forward_args_t, cu_seqlens_k);
    MEMBER(flash_forward_args_t, seqused_k);
    MEMBER(flash_forward_args_t, batch);
    MEMBER(flash_forward_args_t, seqlen_q);
    MEMBER(flash_forward_args_t, seqlen_k);
    MEMBER(flash_forward_args_t, n_heads);
    MEMBER(flash_forward_args_t, n_heads_kv);
    MEMBER(flash_forward_args_t, d_head);
    MEMBER(flash_forward_args_t, window_left);
    MEMBER(flash_forward_args_t, window_right);
    MEMBER(flash_forward_args_t, softmax_scale);
    MEMBER(flash_forward_args_t, softcap);
    MEMBER(flash_forward_args_t, workspace);
    MEMBER(flash_forward_args_t, workspace_size);
}

static void print_combine_args(void) {
    TYPE(flash_combine_args_t);
    MEMBER(flash_combine_args_t, struct_size);
    MEMBER(flash_combine_args_t, device);
    MEMBER(flash_combine_args_t, dtype_partial);
    MEMBER(flash_combine_args_t, dtype);
    MEMBER(flash_combine_args_t, o_partial);
    MEMBER(flash_combine_args_t, stride_partial);
    MEMBER(flash_combine_args_t, lse_partial);
    MEMBER(flash_combine_args_t, o);
    MEMBER(flash_combine_args_t, lse);
    MEMBER(flash_combine_args_t, n_partials);
    MEMBER(flash_combine_args_t, batch);
    MEMBER(flash_combine_args_t, seqlen_q);
    MEMBER(flash_combine_args_t, n_heads);
    MEMBER(flash_combine_args_t, d_head);
}

static void print_values(void) {
    VALUE(FLASH_ABI_VERSION);
    VALUE(FLASH_CONFIG_TEXT_SIZE);
    VALUE(FLASH_TUNING_TEXT_SIZE);
    VALUE(FLASH_SUCCESS);
    VALUE(FLASH_ERROR_INVALID_ARGUMENT);
    VALUE(FLASH_ERROR_INVALID_CONFIG);
    VALUE(FLASH_ERROR_WORKSPACE_TOO_SMALL);
    VALUE(FLASH_ERROR_BUFFER_TOO_SMALL);
    VALUE(FLASH_ERROR_UNSUPPORTED);
    VALUE(FLASH_ERROR_NOT_BUILT);
    VALUE(FLASH_ERROR_OUT_OF_MEMORY);
    VALUE(FLASH_ERROR_NO_DEVICE);
    VALUE(FLASH_ERROR_CUDA);
    VALUE(FLASH_ERROR_INTERNAL);
    VALUE(FLASH_DTYPE_FP16);
    VALUE(FLASH_DTYPE_BF16);
    VALUE(FLASH_DTYPE_FP32);
    VALUE(FLASH_ARCH_REFERENCE);
    VALUE(FLASH_ARCH_AVX2);
    VALUE(FLASH_ARCH_AVX512);
    VALUE(FLASH_ARCH_AMX);
    VALUE(FLASH_ARCH_NEON);
    VALUE(FLASH_ARCH_AVX512_BF16);
    VALUE(FLASH_ARCH_NEON_BF16);
    VALUE(FLASH_ARCH_SM80);
    VALUE(FLASH_ARCH_SM90);
    VALUE(FLASH_FEATURE_CAUSAL);
    VALUE(FLASH_FEATURE_WINDOW);
    VALUE(FLASH_FEATURE_SOFTCAP);
    VALUE(FLASH_FEATURE_VARLEN);
    VALUE(FLASH_DEVICE_CPU);
    VALUE(FLASH_DEVICE_CUDA_CURRENT);
    VALUE(FLASH_DEVICE_CUDA);
    VALUE(FLASH_ISA_AVX2);
    VALUE(FLASH_ISA_AVX512);
    VALUE(FLASH_ISA_AMX);
    VALUE(FLASH_ISA_NEON);
    VALUE(FLASH_ISA_AVX512_BF16);
    VALUE(FLASH_ISA_NEON_BF16);
    VALUE(FLASH_FLAG_CAUSAL);
    VALUE(FLASH_FLAG_WINDOW);
    VALUE(FLASH_FLAG_BATCH_INVARIANT);
}

int main(void) {
    print_types();
    print_config();
    print_device_info();
    print_kernel_resources();
    print_tensor();
    print_forward_args();
    print_combine_args();
    print_values();
    return 0;
}
