/*
 * Measured results replace the estimated choice of a kernel.
 */
#ifndef FLASH_TUNING_H
#define FLASH_TUNING_H

#include "core/device.h"
#include "core/problem.h"
#include "select/select.h"
#include "select/tuning/results.h"

tuning_key_t tuning_key(const problem_t *problem, const device_t *device);

/* Replaces the estimated kernel and the reason if measured results say more: those of
 * `given`, which may be NULL, else the built-in ones. */
void tuning_follow(const tuning_results_t *given, const problem_t *problem, const device_t *device,
                   const flash_kernel_t **kernel, char *reason);

#endif
