/*
 * What launching a kernel is for each CUDA family; the device is current.
 */
#ifndef FLASH_LAUNCH_FAMILIES_H
#define FLASH_LAUNCH_FAMILIES_H

#include "device.h"
#include "flashattn.h"
#include "problem.h"

/* A launch of any kernel: one-dimensional grid of blocks. */
typedef struct cuda_grid {
    int64_t blocks;
    int32_t threads;
    int32_t shared_bytes;
} cuda_grid_t;

/* Enqueues a kernel that takes one parameter, *params. */
flash_status_t launch_grid(const void *symbol, const cuda_grid_t *grid, const void *params,
                           flash_stream_t stream);

flash_status_t launch_sm80(const void *symbol, const flash_config_t *config,
                           const problem_t *problem, flash_stream_t stream);

flash_status_t launch_sm90(const void *symbol, const flash_config_t *config,
                           const problem_t *problem, const device_t *device, flash_stream_t stream);

#endif
