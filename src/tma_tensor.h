/*
 * A tensor as TMA (the Tensor Memory Accelerator of compute capability 9.0) sees it, and whether it
 * can address it. Plain facts: no driver is asked.
 */
#ifndef FLASH_TMA_TENSOR_H
#define FLASH_TMA_TENSOR_H

#include "common/params.h"

enum { TMA_AXES = 4 }; /* d_head, seq, head, batch: innermost first */

typedef struct tma_tensor {
    const void *data;
    int32_t extent[TMA_AXES];
    int64_t stride[TMA_AXES]; /* in elements of 16 bits; the first is 1 */
} tma_tensor_t;

tma_tensor_t tma_tensor_q(const flash_params_t *p);
tma_tensor_t tma_tensor_k(const flash_params_t *p);
tma_tensor_t tma_tensor_v(const flash_params_t *p);
tma_tensor_t tma_tensor_o(const flash_params_t *p);

int tma_tensor_is_empty(const tma_tensor_t *tensor);

/* Why TMA cannot address the tensor; NULL: it can. */
const char *tma_tensor_obstacle(const tma_tensor_t *tensor);

#endif
