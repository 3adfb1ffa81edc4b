/*
 * flash_kv_append() runs here on the CPU.
 */
#ifndef FLASH_CPU_APPEND_H
#define FLASH_CPU_APPEND_H

#include "core/problem.h"
#include "kernels/common/append_params.h"

/* Appends to a cache; the arguments are checked. */
flash_status_t cpu_append(const append_params_t *params, const executor_t *executor);

#endif
