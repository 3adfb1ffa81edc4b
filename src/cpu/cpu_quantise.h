/*
 * flash_quantise() runs here on the CPU.
 */
#ifndef FLASH_CPU_QUANTISE_H
#define FLASH_CPU_QUANTISE_H

#include "core/problem.h"
#include "flashattn.h"

/* Quantises a tensor of n_tokens; the arguments are checked. */
flash_status_t cpu_quantise(const flash_quantise_args_t *args, int64_t n_tokens,
                            const executor_t *executor);

#endif
