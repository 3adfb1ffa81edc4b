/*
 * Running a kernel on the device that it was chosen for.
 */
#ifndef FLASH_LAUNCH_H
#define FLASH_LAUNCH_H

#include "cpu/launch.h"
#include "cuda/launch.h"

static inline flash_status_t launch_forward(const flash_kernel_t *kernel, const problem_t *problem,
                                            const device_t *device, flash_stream_t stream) {
    return device_is_cpu(device) ? launch_cpu(kernel, problem)
                                 : launch_cuda(kernel, problem, device, stream);
}

static inline flash_status_t launch_prepare(const flash_kernel_t *kernel, const problem_t *problem,
                                            const device_t *device) {
    return device_is_cpu(device) ? launch_cpu_prepare(kernel, problem)
                                 : launch_cuda_prepare(kernel, device);
}

/* CUDA kernels need no workspace. */
static inline flash_status_t launch_workspace(const flash_kernel_t *kernel,
                                              const problem_t *problem, const device_t *device,
                                              uint64_t *size) {
    *size = 0;
    return device_is_cpu(device) ? launch_cpu_workspace(kernel, problem, size) : FLASH_SUCCESS;
}

static inline flash_status_t launch_combine(const flash_combine_args_t *args,
                                            const device_t *device, flash_stream_t stream) {
    return device_is_cpu(device) ? launch_cpu_combine(args)
                                 : launch_cuda_combine(args, device, stream);
}

#endif
