/*
 * Which tensors TMA can address: the rules of cuTensorMapEncodeTiled().
 */
#include "tma_tensor.h"

#include "sm90/sm90_kernel.h"

#include <stddef.h>

/* Bytes from one place on an axis to the next are below 2^40. */
#define STRIDE_LIMIT (((int64_t)1 << 40) / SM90_ELEMENT_BYTES)

static tma_tensor_t tensor_of(const void *data, const flash_strides_t *stride, int32_t d_head,
                              int32_t seqlen, int32_t n_heads, int32_t batch) {
    return (tma_tensor_t){.data = data,
                          .extent = {d_head, seqlen, n_heads, batch},
                          .stride = {1, stride->seq, stride->head, stride->batch}};
}

tma_tensor_t tma_tensor_q(const flash_params_t *p) {
    return tensor_of(p->q, &p->q_stride, p->d_head, p->seqlen_q, p->n_heads, p->batch);
}

tma_tensor_t tma_tensor_k(const flash_params_t *p) {
    return tensor_of(p->k, &p->k_stride, p->d_head, p->seqlen_k, p->n_heads_kv, p->batch);
}

tma_tensor_t tma_tensor_v(const flash_params_t *p) {
    return tensor_of(p->v, &p->v_stride, p->d_head, p->seqlen_k, p->n_heads_kv, p->batch);
}

tma_tensor_t tma_tensor_o(const flash_params_t *p) {
    return tensor_of(p->o, &p->o_stride, p->d_head, p->seqlen_q, p->n_heads, p->batch);
}

int tma_tensor_is_empty(const tma_tensor_t *tensor) {
    for (int axis = 0; axis < TMA_AXES; axis++)
        if (tensor->extent[axis] == 0)
            return 1;
    return 0;
}

static const char *stride_obstacle(int64_t stride) {
    if (stride % SM90_CHUNK_ELEMENTS != 0)
        return "TMA needs the strides of Q, K, V and O to be multiples of 16 bytes";
    if (stride < 0 || stride >= STRIDE_LIMIT)
        return "TMA needs the strides of Q, K, V and O to be below 2^40 bytes";
    return NULL;
}

/* The stride of an axis with a single place is never used. */
const char *tma_tensor_obstacle(const tma_tensor_t *tensor) {
    if (tma_tensor_is_empty(tensor))
        return NULL;
    if ((uintptr_t)tensor->data % SM90_CHUNK_BYTES != 0)
        return "TMA needs Q, K, V and O at 16-byte aligned addresses";
    if (tensor->extent[0] % SM90_CHUNK_ELEMENTS != 0)
        return "TMA needs d_head to be a multiple of 8";
    for (int axis = 1; axis < TMA_AXES; axis++) {
        const char *obstacle =
            tensor->extent[axis] > 1 ? stride_obstacle(tensor->stride[axis]) : NULL;
        if (obstacle != NULL)
            return obstacle;
    }
    return NULL;
}
