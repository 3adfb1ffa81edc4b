/*
 * How a decode call is laid out: K/V heads of a block, pieces of a sequence, blocks of both
 * kernels, and the workspace between them. Pure: no device is asked. Where lengths are on the
 * device nothing here depends on seqlen_k, their bound, but in calls with
 * FLASH_FLAG_BATCH_INVARIANT.
 */
#ifndef FLASH_CUDA_PLAN_SM80_DECODE_H
#define FLASH_CUDA_PLAN_SM80_DECODE_H

#include "core/device.h"
#include "core/problem.h"
#include "kernels/sm80/decode_kernel.h"

typedef struct decode_plan {
    sm80_decode_params_t params; /* but for dividers and pointers to the workspace */
    int64_t blocks;              /* of the decode kernel, at most */
    int64_t splits;              /* sequences that are cut, at most */
    int64_t combine_blocks;      /* a row of a sequence that is cut each */
    int64_t slots;               /* of partial results: the most that this or a smaller call uses */
} decode_plan_t;

decode_plan_t plan_sm80_decode(const flash_config_t *config, const problem_t *problem,
                               const device_t *device);

/* Bytes of workspace, wherever it lies. Enough for smaller batches and shorter lengths, too. */
uint64_t plan_sm80_decode_workspace(const decode_plan_t *plan);

/* Points the plan's parameters into the workspace, and completes what the kernels alone want. */
void plan_sm80_decode_place(decode_plan_t *plan, void *workspace);

#endif
