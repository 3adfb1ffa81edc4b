/*
 * Kernels are launched on the caller's stream, without allocation or synchronisation.
 */
#ifndef FLASH_CUDA_LAUNCH_H
#define FLASH_CUDA_LAUNCH_H

#include "cuda/family.h"

/* Returns the function of a kernel as the runtime's calls take it. */
const void *cuda_kernel_symbol(const flash_kernel_t *kernel);

/* Enqueues a kernel, whose device is current and whose attributes are set. */
typedef flash_status_t cuda_enqueue_t(const flash_kernel_t *kernel, const problem_t *problem,
                                      const device_t *device, flash_stream_t stream);

/* Calls `enqueue` with the device current, and leaves the caller's device current. */
flash_status_t cuda_launch(const flash_kernel_t *kernel, const problem_t *problem,
                           const device_t *device, flash_stream_t stream, cuda_enqueue_t *enqueue);

/* Does the same with the row's kernel of dQ of dS. */
const void *cuda_dq_of_ds_symbol(const flash_kernel_t *kernel);
flash_status_t cuda_launch_dq_of_ds(const flash_kernel_t *kernel, const problem_t *problem,
                                    const device_t *device, flash_stream_t stream,
                                    cuda_enqueue_t *enqueue);

/* Loads the kernel, and its kernel of dQ of dS, and sets its attributes on the device. */
flash_status_t cuda_prepare(const flash_kernel_t *kernel, const problem_t *problem,
                            const device_t *device);

/* These are operations of kernels that need no workspace. */
flash_status_t cuda_no_workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                 const device_t *device, uint64_t *size);

flash_status_t cuda_needs_no_workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                       const device_t *device);

/* Checks that a call has a workspace of at least that size, where that is not 0. */
flash_status_t cuda_require_workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                      uint64_t size);

/* Reads what the compiled kernel uses on the device. */
flash_status_t cuda_resources(const flash_kernel_t *kernel, const device_t *device,
                              flash_kernel_resources_t *resources);

#endif
