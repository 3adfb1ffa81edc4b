/*
 * What a CUDA family tells the host of its kernels: their blocks and their tiles.
 */
#ifndef FLASH_CUDA_FAMILY_H
#define FLASH_CUDA_FAMILY_H

#include "config/family.h"

/* What a block of a kernel takes of a multiprocessor. */
typedef struct cuda_block {
    int32_t threads;
    int32_t shared_bytes;        /* dynamic */
    int32_t static_shared_bytes; /* at most */
} cuda_block_t;

typedef struct cuda_family {
    cuda_block_t (*block)(const flash_config_t *config);
    /* Tiles of B_r queries that a launch takes. */
    int64_t (*tiles)(const flash_config_t *config, const flash_params_t *params);
} cuda_family_t;

/* Why no CUDA device of this kind can be given the launch; NULL: it can. */
const char *cuda_launch_obstacle(const cuda_family_t *family, const flash_config_t *config,
                                 const problem_t *problem, const device_t *device);

/* The operations of each family; in a build without CUDA they refuse. */
extern const launch_ops_t sm80_forward_ops;
extern const launch_ops_t sm80_decode_ops;
extern const launch_ops_t sm90_forward_ops;
extern const launch_ops_t sm90_decode_ops; /* those of MIXED are in mixed.c */

#endif
