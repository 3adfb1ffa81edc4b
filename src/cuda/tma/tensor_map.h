/*
 * A tensor map tells TMA how to load boxes of a tensor. The driver's function that encodes it is
 * looked up once, in the driver that the CUDA runtime has loaded; libcuda is never linked.
 */
#ifndef FLASH_TENSOR_MAP_H
#define FLASH_TENSOR_MAP_H

#include "cuda/tma/tma_tensor.h"
#include "flashattn.h"
#include "kernels/sm90/sm90_kernel.h"

/* Finds the driver's function, which is all that encoding needs. */
flash_status_t tensor_map_prepare(void);

/* A box has one panel of columns of some rows of each of some heads, head after head. */
typedef struct tensor_map_box {
    int32_t rows;
    int32_t heads;
} tensor_map_box_t;

/* Encodes the map of a tensor that TMA can address: its boxes are swizzled over their rows' bytes,
 * with zeros beyond the tensor; all zeros if it is empty. */
flash_status_t tensor_map_encode(const tma_tensor_t *tensor, int32_t dtype, tensor_map_box_t box,
                                 sm90_tensor_map_t *map);

#endif
