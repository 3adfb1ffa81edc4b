/*
 * The launches of all decode families share this: their workspace, and the launch of the kernel
 * that merges the pieces of cut sequences.
 */
#ifndef FLASH_CUDA_MERGE_DECODE_H
#define FLASH_CUDA_MERGE_DECODE_H

#include "cuda/decode/plan_decode.h"
#include "flashattn.h"

/* A merging kernel, of DECODE_COMBINE_WARPS warps per block. */
typedef struct decode_merge {
    void (*kernel)(decode_params_t params);
    int32_t parts_of_block; /* of rows: see decode_params_t.merge_parts */
} decode_merge_t;

/* These are operations of decode kernels: the workspace is what the family's plan needs. */
flash_status_t merge_decode_workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                      const device_t *device, uint64_t *size);

flash_status_t merge_decode_check_workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                            const device_t *device);

/* Loads the merging kernel, which is not allowed while a stream is captured. */
flash_status_t merge_decode_prepare(const decode_merge_t *merge, const device_t *device);

/* Enqueues the merging for a plan that has its workspace, if any sequence may be cut. */
flash_status_t merge_decode_enqueue(const decode_merge_t *merge, const decode_plan_t *plan,
                                    const device_t *device, flash_stream_t stream);

#endif
