/*
 * A launch of any kernel: a grid of one dimension.
 */
#ifndef FLASH_LAUNCH_GRID_H
#define FLASH_LAUNCH_GRID_H

#include "flashattn.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct cuda_grid {
    int64_t blocks;
    int32_t threads;
    int32_t shared_bytes; /* dynamic */
    bool is_dependent; /* may start before the kernel before it in the stream has ended, and waits
                          for it by itself (kernels/common/ptx/dependent_launch.cuh) */
} cuda_grid_t;

/* Enqueues a kernel that takes one parameter, *params; the device is current. */
flash_status_t launch_grid(const void *symbol, const cuda_grid_t *grid, const void *params,
                           flash_stream_t stream);

#endif
