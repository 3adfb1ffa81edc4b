/*
 * A CUDA family tells the host about its kernels: their blocks, their tiles and their plans.
 */
#ifndef FLASH_CUDA_FAMILY_H
#define FLASH_CUDA_FAMILY_H

#include "config/family.h"

struct decode_plan; /* cuda/decode/plan_decode.h */

/* A tile of dS that a kernel of dK and dV keeps (kernels/common/kept_ds.h). */
typedef struct cuda_ds_tile {
    int32_t queries;
    int32_t keys;
    bool has_own_places; /* no two rows of tiles share places */
} cuda_ds_tile_t;

/* The resources that a block of a kernel takes on a multiprocessor. */
typedef struct cuda_block {
    int32_t threads;
    int32_t shared_bytes;        /* dynamic shared memory */
    int32_t static_shared_bytes; /* an upper bound */
} cuda_block_t;

typedef struct cuda_family {
    cuda_block_t (*block)(const flash_config_t *config);
    /* Counts the tiles, of B_r queries or of B_c keys, that a launch computes. */
    int64_t (*tiles)(const flash_config_t *config, const flash_params_t *params);
    /* Makes the plan of a decode call. NULL: the family's kernels are not for decode. */
    struct decode_plan (*plan)(const flash_config_t *config, const problem_t *problem,
                               const device_t *device);
    /* Says whether a kernel hides keys in holes of a page table. NULL: those with bias do. */
    bool (*hides_holes)(const flash_config_t *config);
    /* These describe what a row of dK and dV with a second kernel keeps, and that kernel's blocks.
     * NULL: the family's rows have none. */
    cuda_ds_tile_t (*ds_tile)(const flash_config_t *config);
    cuda_block_t (*dq_of_ds_block)(const flash_config_t *config);
} cuda_family_t;

/* Returns why the device cannot be given the launch; NULL if it can. */
const char *cuda_launch_obstacle(const cuda_family_t *family, const flash_config_t *config,
                                 const problem_t *problem, const device_t *device);

/* The operations of each family. In a build without CUDA they fail. */
extern const family_calls_t sm80_forward_calls;
extern const family_calls_t sm80_backward_calls;
extern const family_calls_t sm80_decode_calls; /* of SM80_MLA and SM80_WIDE too */
extern const family_calls_t sm90_forward_calls;
extern const family_calls_t sm90_backward_calls;
extern const family_calls_t
    sm90_decode_calls; /* of SM90_MLA and SM90_WIDE too; those of MIXED are in mixed.c */

#endif
