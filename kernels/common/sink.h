/*
 * Host and device code find here the attention sink of a query head, and how much it may weigh.
 */
#ifndef FLASH_KERNELS_COMMON_SINK_H
#define FLASH_KERNELS_COMMON_SINK_H

#include "common/sequence.h"

#include <math.h>

/* dLSE counts less in a row whose sink is e^64 times its sum or more, so that D is finite
 * (docs/numerics.md). */
enum { FLASH_SINK_MOST = 64 };

/* Returns the sink, in units of scaled scores (natural logarithm); -infinity, which has no weight,
 * if there are none (NULL). On the CPU the array may have any alignment. */
FLASH_HOST_DEVICE static inline float flash_sink_at(const float *sinks, int64_t head) {
    if (sinks == NULL)
        return -INFINITY;
#ifdef __CUDA_ARCH__
    return sinks[head];
#else
    float value;
    memcpy(&value, (const char *)sinks + head * (int64_t)sizeof value, sizeof value);
    return value;
#endif
}

#endif
