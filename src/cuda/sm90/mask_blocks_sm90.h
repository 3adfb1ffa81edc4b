/*
 * A kernel looks at a mask ahead of an SM90 kernel, which leaves out what the mask hides. This file
 * says when that pays, and how much workspace it takes. It calls no device.
 */
#ifndef FLASH_CUDA_MASK_BLOCKS_SM90_H
#define FLASH_CUDA_MASK_BLOCKS_SM90_H

#include "core/problem.h"
#include "flashattn.h"
#include "kernels/common/params.h"

/* Returns the blocks that the kernel looks at, without a place for what it finds; no blocks if a
 * call does without it. */
flash_mask_blocks_t mask_blocks_sm90(const flash_config_t *config, const flash_params_t *params);

/* Returns the bytes of workspace, at any alignment. Smaller batches and lengths need no more. */
uint64_t mask_blocks_sm90_workspace(const flash_config_t *config, const flash_params_t *params);

/* Returns why a row whose consumers only count blocks (sm90_counts_blocks()) does not serve the
 * call's bias; NULL if it does, or if the row is another. */
const char *mask_blocks_sm90_obstacle(const flash_config_t *config, const problem_t *problem);

#endif
