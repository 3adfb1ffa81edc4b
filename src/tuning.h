/*
 * What selection asks of measured results.
 */
#ifndef FLASH_TUNING_H
#define FLASH_TUNING_H

#include "device.h"
#include "problem.h"
#include "select.h"
#include "tuning_results.h"

tuning_key_t tuning_key(const problem_t *problem, const device_t *device);

/* Results of the caller that are in force, or NULL (tuning_in_force.c). INVALID_ARGUMENT
 * (FLASH_TUNING). */
flash_status_t tuning_in_force(const tuning_results_t **results);

/* Replaces the kernel that was estimated to be the best, and the reason, where results say more.
 * own may be NULL. */
void tuning_follow(const tuning_results_t *own, const problem_t *problem, const device_t *device,
                   const flash_kernel_t **kernel, char reason[SELECT_REASON_SIZE]);

#endif
