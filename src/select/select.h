/*
 * Selection finds the kernel for a problem. It is a pure function of the problem, the device's
 * description and the table, so that tests can describe devices that are not there.
 */
#ifndef FLASH_SELECT_H
#define FLASH_SELECT_H

#include "config/family.h"
#include "core/device.h"
#include "core/problem.h"
#include "flashattn.h"

enum { SELECT_REASON_SIZE = 256 };

/* Finds the kernel that is best by estimates, and says why. Returns UNSUPPORTED if none serves.
 * reason: SELECT_REASON_SIZE bytes, or NULL if nobody asks. */
flash_status_t select_kernel(const problem_t *problem, const device_t *device,
                             const flash_kernel_t **kernel, char *reason);

/* Returns the row that is best by estimates for one part of a batch (FAMILY_DECODE_PART,
 * FAMILY_FORWARD_PART), given as a problem of its own; NULL if none serves it. */
const flash_kernel_t *select_part(const problem_t *problem, const device_t *device,
                                  family_part_t part);

#endif
