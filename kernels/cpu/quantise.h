/*
 * This file quantises FLASH_QUANT_BLOCK numbers to a block of Q8_0 or Q4_0, as ggml's reference
 * does (quantize_row_q8_0_ref, quantize_row_q4_0_ref), in fp32: the same bits, since each product,
 * sum and quotient is rounded. Where that has no number for an element, the block's scale is NaN.
 */
#ifndef FLASH_KERNELS_CPU_QUANTISE_H
#define FLASH_KERNELS_CPU_QUANTISE_H

#include "cpu/convert.h"

#include <math.h>
#include <stdbool.h>

/* Returns the first of the numbers whose magnitude is the largest; NaN if one is not finite. */
static inline float quant_extreme(const float x[FLASH_QUANT_BLOCK]) {
    float extreme = 0;
    bool finite = true;
    for (int i = 0; i < FLASH_QUANT_BLOCK; i++) {
        finite = finite && isfinite(x[i]);
        extreme = fabsf(x[i]) > fabsf(extreme) ? x[i] : extreme;
    }
    return finite ? extreme : NAN;
}

/* Returns what numbers are multiplied by; 0 where they and all elements are 0, or so small that the
 * scale is 0 as fp16. */
static inline float quant_inverse(float scale) {
    const float inverse = 1 / scale;
    return isfinite(inverse) ? inverse : 0;
}

static inline void quantise_q8_0(const float x[FLASH_QUANT_BLOCK], void *block) {
    int8_t *elements = (int8_t *)block + QUANT_SCALE_BYTES;
    const float scale = fabsf(quant_extreme(x)) / Q8_0_LARGEST, inverse = quant_inverse(scale);
    element_store(block, 0, FLASH_DTYPE_FP16, scale);
    for (int i = 0; i < FLASH_QUANT_BLOCK; i++)
        elements[i] = isnan(scale) ? 0 : (int8_t)roundf(x[i] * inverse);
}

/* Returns an element of 4 bits, 0 ... 15. */
static inline uint8_t q4_0_element(float x, float inverse) {
    const float scaled = x * inverse;
    const int element = (int)(scaled + (Q4_0_ZERO + 0.5f));
    return (uint8_t)(element < 15 ? element : 15);
}

static inline void quantise_q4_0(const float x[FLASH_QUANT_BLOCK], void *block) {
    enum { HALF = FLASH_QUANT_BLOCK / 2 };
    uint8_t *elements = (uint8_t *)block + QUANT_SCALE_BYTES;
    const float scale = quant_extreme(x) / -Q4_0_ZERO, inverse = quant_inverse(scale);
    element_store(block, 0, FLASH_DTYPE_FP16, scale);
    for (int i = 0; i < HALF; i++)
        elements[i] =
            isnan(scale)
                ? 0
                : (uint8_t)(q4_0_element(x[i], inverse) | q4_0_element(x[i + HALF], inverse) << 4);
}

/* Quantises to a type that has blocks. */
static inline void quantise(int32_t dtype, const float x[FLASH_QUANT_BLOCK], void *block) {
    if (dtype == FLASH_DTYPE_Q8_0)
        quantise_q8_0(x, block);
    else
        quantise_q4_0(x, block);
}

#endif
