/*
 * flash_combine() runs here on the CPU.
 */
#ifndef FLASH_CPU_COMBINE_H
#define FLASH_CPU_COMBINE_H

#include "core/problem.h"
#include "flashattn.h"

/* Merges partial results; the arguments are checked. */
flash_status_t cpu_combine(const flash_combine_args_t *args, const executor_t *executor);

#endif
