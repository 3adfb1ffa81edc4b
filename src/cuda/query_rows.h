/*
 * Decode kernels for compute capability 9.0 read rows of Q by 16 bytes.
 */
#ifndef FLASH_CUDA_QUERY_ROWS_H
#define FLASH_CUDA_QUERY_ROWS_H

#include "kernels/common/params.h"

#include <stdbool.h>

/* Says whether every row of Q begins and ends at a multiple of 16 bytes. */
bool query_rows_aligned(const flash_params_t *p);

#endif
