/*
 * Which kernel is taken for a problem: a pure function of the problem, the device's description and
 * the table, so that tests can ask for devices that are not there.
 */
#ifndef FLASH_SELECT_H
#define FLASH_SELECT_H

#include "config/family.h"
#include "core/device.h"
#include "core/problem.h"
#include "flashattn.h"

enum { SELECT_REASON_SIZE = 256 };

/* Finds the best kernel in the table for the problem, by estimates, and why it is. UNSUPPORTED:
 * none serves. */
flash_status_t select_kernel(const problem_t *problem, const device_t *device,
                             const flash_kernel_t **kernel, char reason[SELECT_REASON_SIZE]);

/* Returns the best row, by estimates, of the families that are for one part of a batch
 * (FAMILY_DECODE_PART, FAMILY_FORWARD_PART), for that part as a problem of its own; NULL: none
 * serves it. */
const flash_kernel_t *select_part(const problem_t *problem, const device_t *device,
                                  family_part_t part);

#endif
