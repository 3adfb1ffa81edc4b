/*
 * Tensor maps: what the driver makes of a tensor for TMA to load boxes of it. The driver's function
 * is looked up once, in the driver that the CUDA runtime has loaded: libcuda is never linked.
 */
#ifndef FLASH_TENSOR_MAP_H
#define FLASH_TENSOR_MAP_H

#include "cuda/tma_tensor.h"
#include "flashattn.h"
#include "kernels/sm90/sm90_kernel.h"

/* Finds the driver's function; the maps need no more than that. */
flash_status_t tensor_map_prepare(void);

/* The map of a tensor that TMA can address, with boxes of one panel of columns by box_rows rows of
 * one head, 128-byte swizzled; zeros beyond the tensor's ends. An empty tensor has none: all zeros.
 */
flash_status_t tensor_map_encode(const tma_tensor_t *tensor, int32_t dtype, int32_t box_rows,
                                 sm90_tensor_map_t *map);

#endif
