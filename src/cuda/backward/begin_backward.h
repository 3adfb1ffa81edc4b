/*
 * A backward call on a CUDA device begins with what its kernels need: copies of inputs whose rows
 * they cannot read, sums of rows, gradients of sinks, and zeros where no token is in use.
 */
#ifndef FLASH_CUDA_BEGIN_BACKWARD_H
#define FLASH_CUDA_BEGIN_BACKWARD_H

#include "core/device.h"
#include "core/problem.h"

/* Loads the kernels, because loading is not allowed while a stream is captured. */
flash_status_t cuda_backward_prepare(const device_t *device);

/* Enqueues all of that, and makes the problem that of the kernels of gradients. Its workspace has
 * been checked. */
flash_status_t cuda_backward_begin(problem_t *problem, const device_t *device,
                                   flash_stream_t stream);

#endif
