/*
 * Decode kernels read rows of Q by 16 bytes, and those of SM80_DECODE, SM80_MLA and SM80_WIDE
 * rows of K and V too.
 */
#ifndef FLASH_CUDA_QUERY_ROWS_H
#define FLASH_CUDA_QUERY_ROWS_H

#include "kernels/common/params.h"

#include <stdbool.h>

/* Says whether every row of a tensor begins and ends at a multiple of 16 bytes. */
bool rows_aligned(const void *data, const flash_strides_t *stride, int32_t columns,
                  int32_t element_bytes);

/* Says the same of Q. */
bool query_rows_aligned(const flash_params_t *p);

#endif
