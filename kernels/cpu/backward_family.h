/*
 * What the backward pass asks of CPU families.
 */
#ifndef FLASH_KERNELS_CPU_BACKWARD_FAMILY_H
#define FLASH_KERNELS_CPU_BACKWARD_FAMILY_H

#include "common/params.h"
#include "flashattn.h"

#include <stdbool.h>
#include <stdint.h>

/* Returns the packed rows of a task of dQ at most, a multiple of B_r. */
int64_t cpu_backward_task_rows(const flash_config_t *config);

/* Says whether tasks of dkv can compute dQ as well, with the bits that tasks of dq give it. */
bool cpu_backward_joins(const flash_config_t *dq, const flash_config_t *dkv);

/* Returns the bytes of scratch of a task of the configuration's operation, a multiple of 64.
 * dq_rows: the rows whose dQ it computes, at most; 0: none. */
uint64_t cpu_backward_scratch_size(const flash_config_t *config, const flash_params_t *params,
                                   int64_t dq_rows);

#endif
