/*
 * How a decode call is laid out: heads of a block, pieces of a sequence, blocks of both kernels, and
 * the workspace between them. Pure: no device is asked. Where lengths are on the device nothing
 * here depends on seqlen_k, their bound.
 */
#ifndef FLASH_CUDA_PLAN_SM80_DECODE_H
#define FLASH_CUDA_PLAN_SM80_DECODE_H

#include "core/device.h"
#include "core/problem.h"
#include "kernels/sm80/decode_kernel.h"

typedef struct decode_plan {
    sm80_decode_params_t params; /* but for the pointers to the workspace */
    int64_t blocks;              /* of the decode kernel */
    int64_t combine_blocks;      /* 0: no sequence is cut */
    int64_t slots;               /* of partial results */
    int64_t most_splits;         /* sequences that the device may cut */
    uint64_t workspace_size;     /* bytes */
} decode_plan_t;

decode_plan_t plan_sm80_decode(const flash_config_t *config, const problem_t *problem,
                               const device_t *device);

/* Points the plan's parameters into its workspace. */
void plan_sm80_decode_place(decode_plan_t *plan, void *workspace);

#endif
