/*
 * What a backward call does before its kernels, and the workspace of that, are another on CPUs than
 * on CUDA devices.
 */
#ifndef FLASH_API_BACKWARD_BEGIN_H
#define FLASH_API_BACKWARD_BEGIN_H

#include "core/device.h"
#include "core/problem.h"

/* Returns the bytes of workspace that the begin of a call takes. */
uint64_t backward_begin_size(const problem_t *problem, const device_t *device);

/* Returns WORKSPACE_TOO_SMALL or INVALID_ARGUMENT unless the workspace has `least` bytes. */
flash_status_t backward_check_workspace(const problem_t *problem, const device_t *device,
                                        uint64_t least, uint64_t best);

/* Does what the first call would do once. */
flash_status_t backward_prepare(const device_t *device);

/* Computes or enqueues what both operations need, and makes the problem that of their kernels. */
flash_status_t backward_begin(problem_t *problem, const device_t *device, flash_stream_t stream);

#endif
