/*
 * This header describes a tensor as TMA (the Tensor Memory Accelerator of compute capability 9.0)
 * sees it, and says whether TMA can address it. Nothing here calls the driver.
 */
#ifndef FLASH_TMA_TENSOR_H
#define FLASH_TMA_TENSOR_H

#include "flashattn.h"
#include "kernels/common/params.h"

#include <stdbool.h>

enum { TMA_MOST_AXES = 5 };

/* Axes are listed from the innermost: d_head or d_head_v, seq, head, batch. If not all batch
 * entries have the same tokens, they are those of a ragged tensor's map (kernels/sm90/ptx/tma.cuh).
 */
typedef struct tma_tensor {
    const void *data;
    int32_t element_bytes;
    int32_t n_axes;
    int32_t extent[TMA_MOST_AXES];
    int64_t stride[TMA_MOST_AXES]; /* in elements; the first is 1 */
    /* Tokens from one batch entry to the next of a ragged map; 0 if the tensor itself is ragged;
     * negative if they are no whole number, or too many. */
    int64_t entry_tokens;
} tma_tensor_t;

/* These describe a tensor as a kernel of the configuration sees it: K and V in elements of the
 * configuration's type, Q and O in elements of what the kernel multiplies, ragged with varlen. Of
 * latent tokens K is all bytes, and V those up to the end of their scales. */
tma_tensor_t tma_tensor_q(const flash_config_t *config, const flash_params_t *p);
tma_tensor_t tma_tensor_k(const flash_config_t *config, const flash_params_t *p);
tma_tensor_t tma_tensor_v(const flash_config_t *config, const flash_params_t *p);
tma_tensor_t tma_tensor_o(const flash_config_t *config, const flash_params_t *p);

bool tma_tensor_is_empty(const tma_tensor_t *tensor);

/* Returns why TMA cannot address the tensor; NULL if it can. */
const char *tma_tensor_obstacle(const tma_tensor_t *tensor);

/* Returns the same of K and V. */
const char *tma_tensor_kv_obstacle(const flash_config_t *config, const flash_params_t *p);

#endif
