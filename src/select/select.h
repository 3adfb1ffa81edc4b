/*
 * Which kernel serves a problem: pure functions of the problem, the device's description and the
 * table, so that tests can ask for devices that are not there.
 */
#ifndef FLASH_SELECT_H
#define FLASH_SELECT_H

#include "core/device.h"
#include "flashattn.h"
#include "core/problem.h"

enum { SELECT_REASON_SIZE = 256 };

/* Fails unless this kernel serves the problem on the device: types, sizes and features, and what
 * the device has. */
flash_status_t select_check(const flash_kernel_t *kernel, const problem_t *problem,
                            const device_t *device);

/* The best kernel in the table for the problem, and why it is. */
flash_status_t select_kernel(const problem_t *problem, const device_t *device,
                             const flash_kernel_t **kernel, char reason[SELECT_REASON_SIZE]);

/* The heuristics, a file a kind of family; NULL when no row serves. */
const flash_kernel_t *select_cpu(const problem_t *problem, const device_t *device,
                                 char reason[SELECT_REASON_SIZE]);
const flash_kernel_t *select_cuda(const problem_t *problem, const device_t *device,
                                  char reason[SELECT_REASON_SIZE]);

/* select_check() without the message. */
bool select_serves(const flash_kernel_t *kernel, const problem_t *problem, const device_t *device);

#endif
