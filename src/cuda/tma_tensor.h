/*
 * A tensor as TMA (the Tensor Memory Accelerator of compute capability 9.0) sees it, and whether it
 * can address it. Plain facts: no driver is asked.
 */
#ifndef FLASH_TMA_TENSOR_H
#define FLASH_TMA_TENSOR_H

#include "flashattn.h"
#include "kernels/common/params.h"

#include <stdbool.h>

enum { TMA_MOST_AXES = 5 };

/* Innermost axis first: d_head, seq, head, batch; or the axes of a ragged tensor's map
 * (kernels/sm90/ptx/tma.cuh), for tensors of which not all batch entries have the same tokens. */
typedef struct tma_tensor {
    const void *data;
    int32_t element_bytes;
    int32_t n_axes;
    int32_t extent[TMA_MOST_AXES];
    int64_t stride[TMA_MOST_AXES]; /* in elements; the first is 1 */
    /* A ragged map has so many tokens from one batch entry to the next, 0 where the tensor itself
     * is ragged; negative: not a whole number, or too many. */
    int64_t entry_tokens;
} tma_tensor_t;

/* Describes the tensor as a kernel of the configuration sees it: K and V in elements of its type,
 * Q and O in those of what it multiplies, ragged if it has varlen. */
tma_tensor_t tma_tensor_q(const flash_config_t *config, const flash_params_t *p);
tma_tensor_t tma_tensor_k(const flash_config_t *config, const flash_params_t *p);
tma_tensor_t tma_tensor_v(const flash_config_t *config, const flash_params_t *p);
tma_tensor_t tma_tensor_o(const flash_config_t *config, const flash_params_t *p);

bool tma_tensor_is_empty(const tma_tensor_t *tensor);

/* Returns why TMA cannot address the tensor; NULL: it can. */
const char *tma_tensor_obstacle(const tma_tensor_t *tensor);

#endif
