/*
 * Host and device code find here the scale of K or V of e4m3 for a batch entry and a K/V head.
 */
#ifndef FLASH_KERNELS_COMMON_SCALE_H
#define FLASH_KERNELS_COMMON_SCALE_H

#include "common/params.h"
#include "common/sequence.h"

#include <string.h>

/* Returns the scale; 1 if there are none. On the CPU the array may have any alignment. */
FLASH_HOST_DEVICE static inline float flash_scale_at(const flash_scale_t *scale, int64_t b,
                                                     int64_t head_kv) {
    if (scale->data == NULL)
        return 1;
    const int64_t i = b * scale->stride_batch + head_kv * scale->stride_head;
#ifdef __CUDA_ARCH__
    return scale->data[i];
#else
    float value;
    memcpy(&value, (const char *)scale->data + i * (int64_t)sizeof value, sizeof value);
    return value;
#endif
}

#endif
