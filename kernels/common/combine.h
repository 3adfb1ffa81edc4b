/*
 * The host launches the combine kernel for flash_combine(), with one warp per row.
 */
#ifndef FLASH_KERNELS_COMMON_COMBINE_H
#define FLASH_KERNELS_COMMON_COMBINE_H

#include "flashattn.h"

enum { COMBINE_WARPS = 4 }; /* per block */

#ifndef __CUDACC__
/* The kernel of combine.cu is declared for the host, which launches it and never calls it. */
void flash_combine_rows(flash_combine_args_t args);
#endif

#endif
