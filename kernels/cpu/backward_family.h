/*
 * What the backward pass asks of CPU families.
 */
#ifndef FLASH_KERNELS_CPU_BACKWARD_FAMILY_H
#define FLASH_KERNELS_CPU_BACKWARD_FAMILY_H

#include "common/params.h"
#include "flashattn.h"

#include <stdint.h>

/* Returns the bytes of scratch of a task of the configuration's operation, a multiple of 64. */
uint64_t cpu_backward_scratch_size(const flash_config_t *config, const flash_params_t *params);

#endif
