/*
 * A call of SM90_DECODE has the plan of plan_decode.h, and an estimate of its time. Both
 * follow only from the arguments, and call no device.
 */
#ifndef FLASH_CUDA_PLAN_SM90_DECODE_H
#define FLASH_CUDA_PLAN_SM90_DECODE_H

#include "cuda/decode/plan_decode.h"

decode_plan_t plan_sm90_decode(const flash_config_t *config, const problem_t *problem,
                               const device_t *device);

/* Estimates the time of tiles of B_r rows, in tenths of what a tile of 128 rows takes for a unit of
 * keys. With FLASH_FLAG_BATCH_INVARIANT it is that of a batch of one. */
int64_t estimate_sm90_decode(int32_t B_r, const problem_t *problem, const device_t *device);

/* Estimates the time of the SM90 family with tiles of B_r rows, in the same unit. */
int64_t estimate_sm90_forward(int32_t B_r, const problem_t *problem, const device_t *device);

#endif
