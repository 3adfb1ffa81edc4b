/*
 * Launching a kernel of a CUDA family on the caller's stream: no allocation, no synchronisation.
 */
#ifndef FLASH_LAUNCH_CUDA_H
#define FLASH_LAUNCH_CUDA_H

#include "core/device.h"
#include "flashattn.h"
#include "core/problem.h"

/* Loads the kernel and sets its attributes on the device. */
flash_status_t launch_cuda_prepare(const flash_kernel_t *kernel, const device_t *device);

/* Enqueues the problem, which has output and checked data. */
flash_status_t launch_cuda(const flash_kernel_t *kernel, const problem_t *problem,
                           const device_t *device, flash_stream_t stream);

/* Enqueues the merging of partial results; the arguments are checked. */
flash_status_t launch_cuda_combine(const flash_combine_args_t *args, const device_t *device,
                                   flash_stream_t stream);

/* What the compiled kernel uses on the device. */
flash_status_t launch_cuda_resources(const flash_kernel_t *kernel, const device_t *device,
                                     flash_kernel_resources_t *resources);

#endif
