/*
 * These say whether a kernel serves a problem on a device, and if not, why.
 */
#ifndef FLASH_SELECT_SERVES_H
#define FLASH_SELECT_SERVES_H

#include "core/device.h"
#include "core/problem.h"
#include "flashattn.h"

#include <stdbool.h>

/* Says whether d_head, d_head_v, features and types of a kernel suffice for the problem. */
bool select_fits(const flash_kernel_t *kernel, const problem_t *problem);

/* Returns why a kernel that fits cannot run this problem on a device, which lacks nothing for the
 * family; NULL if it can. */
const char *select_obstacle(const flash_kernel_t *kernel, const problem_t *problem,
                            const device_t *device);

bool select_serves(const flash_kernel_t *kernel, const problem_t *problem, const device_t *device);

/* Returns UNSUPPORTED, with the condition that fails, if the kernel does not serve the problem. */
flash_status_t select_check(const flash_kernel_t *kernel, const problem_t *problem,
                            const device_t *device);

#endif
