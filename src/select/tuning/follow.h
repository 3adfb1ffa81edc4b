/*
 * What selection asks of measured results.
 */
#ifndef FLASH_TUNING_H
#define FLASH_TUNING_H

#include "core/device.h"
#include "core/problem.h"
#include "select/select.h"
#include "select/tuning/results.h"

tuning_key_t tuning_key(const problem_t *problem, const device_t *device);

/* Replaces the kernel that was estimated to be the best, and the reason, where results say more.
 * own may be NULL. */
void tuning_follow(const tuning_results_t *own, const problem_t *problem, const device_t *device,
                   const flash_kernel_t **kernel, char reason[SELECT_REASON_SIZE]);

#endif
