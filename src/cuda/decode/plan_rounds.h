/*
 * Decode kernels of which a multiprocessor runs one block at a time cut sequences into as many
 * pieces as take the least time by estimate: those that fill one round of blocks, or two. The
 * estimate follows only from the arguments, and calls no device.
 */
#ifndef FLASH_CUDA_PLAN_ROUNDS_H
#define FLASH_CUDA_PLAN_ROUNDS_H

#include "cuda/decode/plan_decode.h"

#include <stdbool.h>

/* A plan goes by these estimated times of a kernel, in any one unit, and by the keys of a piece. */
typedef struct round_times {
    int64_t of_unit;        /* a tile of rows over a unit of keys */
    int64_t around_block;   /* a block beside its keys */
    int64_t of_merge;       /* the kernel that merges pieces */
    int32_t invariant_keys; /* of a share, with FLASH_FLAG_BATCH_INVARIANT */
    bool walks;             /* the kernel walks parts of the batch */
} round_times_t;

decode_plan_t plan_rounds(const flash_config_t *config, const problem_t *problem,
                          const device_t *device, const round_times_t *times);

/* Estimates the time of tiles of B_r rows. With FLASH_FLAG_BATCH_INVARIANT it is that of a batch of
 * one. */
int64_t estimate_rounds(int32_t B_r, const problem_t *problem, const device_t *device,
                        const round_times_t *times);

/* Counts the rounds in which all tiles of B_r rows run, a block per multiprocessor. */
int64_t estimate_round_count(int32_t B_r, const problem_t *problem, const device_t *device);

/* Estimates how many units of keys a query sees on average. */
int64_t estimate_mean_units(const flash_params_t *params);

/* Returns the batch that the choice of a kernel may look at: 1 under FLASH_FLAG_BATCH_INVARIANT. */
int64_t selection_batch(const problem_t *problem);

/* Says whether to walk parts of the batch takes less time than a block for each piece: where pieces
 * of one round leave multiprocessors without work, or may because lengths differ, and parts do not.
 * The number of keys has no say in it. */
bool parts_pay(int32_t B_r, const problem_t *problem, const device_t *device);

/* Returns why the keys of the batch cannot be divided into parts; NULL if they can. */
const char *parts_obstacle(const problem_t *problem);

#endif
