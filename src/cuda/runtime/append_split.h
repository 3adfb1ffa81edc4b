/*
 * A call of flash_kv_append() whose V has another head dimension than its K becomes two calls for
 * CUDA devices, whose kernels have one for all rows.
 */
#ifndef FLASH_CUDA_APPEND_SPLIT_H
#define FLASH_CUDA_APPEND_SPLIT_H

#include "kernels/common/append_params.h"

#include <stdbool.h>

bool append_is_split(const append_params_t *params);

/* Returns the call that appends V alone, as K. It writes no lengths. */
append_params_t append_v_alone(const append_params_t *params);

/* Returns the call that does the rest: K, Q and the lengths. */
append_params_t append_without_v(const append_params_t *params);

#endif
