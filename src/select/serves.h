/*
 * These say whether a kernel serves a problem on a device, and if not, why.
 */
#ifndef FLASH_SELECT_SERVES_H
#define FLASH_SELECT_SERVES_H

#include "core/device.h"
#include "core/problem.h"
#include "flashattn.h"

#include <stdbool.h>

bool select_serves(const flash_kernel_t *kernel, const problem_t *problem, const device_t *device);

/* Returns UNSUPPORTED, with the condition that fails, if the kernel does not serve the problem. */
flash_status_t select_check(const flash_kernel_t *kernel, const problem_t *problem,
                            const device_t *device);

#endif
