/*
 * An attention sink joins the sum of a row's weights after the row's last key.
 */
#ifndef FLASH_KERNELS_CPU_SINK_H
#define FLASH_KERNELS_CPU_SINK_H

#include "common/sink.h"

#include <math.h>

/* Returns the sum of a row's weights exp(s - reference), with the weight of the sink added. A sum
 * of 0 stays: the row saw no key. So does every sum if the sink is -infinity, whatever the
 * reference is. A weight that overflows is infinite, and the row's O is 0. */
static inline float sum_with_sink(float sum, float sink, float reference) {
    return sum != 0 && sink != -INFINITY ? sum + expf(sink - reference) : sum;
}

#endif
