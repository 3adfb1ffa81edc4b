/*
 * Kernels for latent attention (MLA) read K once and take V from its first columns.
 */
#ifndef FLASH_CUDA_V_IN_K_H
#define FLASH_CUDA_V_IN_K_H

#include "core/problem.h"

#include <stdbool.h>

/* Says whether SM80, and so a family that reads small K and V faster even if they are the same
 * tensor, serves the head dimensions. */
bool v_in_k_is_small(const problem_t *problem);

#endif
