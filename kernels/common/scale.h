/*
 * Host and device code find here the scale of K or V of e4m3 for a batch entry and a K/V head, and
 * that of a row of Q.
 */
#ifndef FLASH_KERNELS_COMMON_SCALE_H
#define FLASH_KERNELS_COMMON_SCALE_H

#include "common/params.h"
#include "common/sequence.h"

#include <string.h>

/* Returns element i; on the CPU the array may have any alignment. */
FLASH_HOST_DEVICE static inline float flash_scale_load(const float *data, int64_t i) {
#ifdef __CUDA_ARCH__
    return data[i];
#else
    float value;
    memcpy(&value, (const char *)data + i * (int64_t)sizeof value, sizeof value);
    return value;
#endif
}

/* Returns the scale; 1 if there are none. */
FLASH_HOST_DEVICE static inline float flash_scale_at(const flash_scale_t *scale, int64_t b,
                                                     int64_t head_kv) {
    if (scale->data == NULL)
        return 1;
    return flash_scale_load(scale->data, b * scale->stride_batch + head_kv * scale->stride_head);
}

/* Returns a stride of batch entries that says that scales are those of pages, one such stride
 * apart. */
static inline int64_t flash_page_scale_stride(int64_t stride) {
    return -1 - stride;
}

FLASH_HOST_DEVICE static inline int flash_has_page_scales(const flash_scale_t *scale) {
    return scale->stride_batch < 0;
}

/* Returns the scale of a page. */
FLASH_HOST_DEVICE static inline float flash_page_scale_at(const flash_scale_t *scale, int64_t page,
                                                          int64_t head_kv) {
    const int64_t stride = -1 - scale->stride_batch;
    return flash_scale_load(scale->data, page * stride + head_kv * scale->stride_head);
}

/* Returns the scale of a row of Q of e4m3: of token i, counted as Q's strides do, and a query head.
 */
FLASH_HOST_DEVICE static inline float flash_q_scale_at(const flash_params_t *p, int64_t b,
                                                       int64_t token, int64_t head) {
    const flash_q_scale_t *scale = &p->q_scale;
    const flash_strides_t *stride = &scale->token_stride;
    const float of_head = flash_scale_at(&scale->of_head, b, head / p->group);
    if (scale->of_token == NULL)
        return of_head;
    return of_head * flash_scale_load(scale->of_token, b * stride->batch + token * stride->seq +
                                                           head * stride->head);
}

#endif
