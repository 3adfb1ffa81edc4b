/*
 * A launch of the SM90 family decides this about its tiles and its schedule, which says which block
 * computes which tiles (kernels/sm90/schedule/schedule.cuh).
 */
#ifndef FLASH_SCHEDULE_SM90_H
#define FLASH_SCHEDULE_SM90_H

#include "kernels/sm90/sm90_kernel.h"

/* Returns how many query heads of a group share tiles at most. */
int32_t schedule_sm90_most_sharing(const flash_params_t *p);

/* Decides how many heads share tiles, as a power of two. */
int32_t schedule_sm90_pack_shift(const flash_config_t *config, const flash_params_t *p);

/* Counts the tiles of a launch, at most. */
int64_t schedule_sm90_tiles(const flash_config_t *config, const flash_params_t *p);

/* Returns the problem with the decision which heads share tiles, which the following need. */
flash_params_t schedule_sm90_problem(const flash_config_t *config, const flash_params_t *p);

/* The blocks of the grid: one per tile; persistent: one per multiprocessor, and fewer
 * where there are fewer tiles. */
int64_t schedule_sm90_blocks(const flash_config_t *config, const flash_params_t *p,
                             int32_t n_multiprocessors);

/* The schedule of a grid with that number of blocks, at least one. */
sm90_schedule_t schedule_sm90(const flash_config_t *config, const flash_params_t *p,
                              int64_t blocks);

#endif
