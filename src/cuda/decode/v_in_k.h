/*
 * Kernels for latent attention (MLA) read K once and take V from its first columns.
 */
#ifndef FLASH_CUDA_V_IN_K_H
#define FLASH_CUDA_V_IN_K_H

#include "core/problem.h"

#include <stdbool.h>

/* Says whether another family serves the head dimensions, which reads small K and V faster even if
 * they are the same tensor. */
bool v_in_k_is_small(const flash_params_t *p);

#endif
