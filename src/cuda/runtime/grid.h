/*
 * Any kernel is launched with a one-dimensional grid.
 */
#ifndef FLASH_LAUNCH_GRID_H
#define FLASH_LAUNCH_GRID_H

#include "flashattn.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct cuda_grid {
    int64_t blocks;
    int32_t threads;
    int32_t shared_bytes; /* dynamic shared memory */
    bool is_dependent;    /* programmatic dependent launch: the kernel itself waits for the one
                             ahead of it (kernels/common/ptx/dependent_launch.cuh) */
} cuda_grid_t;

/* Enqueues a kernel that takes one parameter, *params. The stream's device is current. */
flash_status_t launch_grid(const void *symbol, const cuda_grid_t *grid, const void *params,
                           flash_stream_t stream);

#endif
