/*
 * Rules among the fields of families whose tiles and shared memory are those of SM90, as in
 * codegen/legality.py.
 */
#ifndef FLASH_CUDA_RULES_SM90_H
#define FLASH_CUDA_RULES_SM90_H

#include "flashattn.h"

/* Checks that the warps are those of the tile, and that kernels are written for its shape. */
flash_status_t rules_sm90_tile(const flash_config_t *config);

/* Checks that tiles and state fit into the shared memory of a block. */
flash_status_t rules_sm90_memory(const flash_config_t *config);

#endif
