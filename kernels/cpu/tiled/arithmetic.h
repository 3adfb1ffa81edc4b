/*
 * This file has constants and scalar arithmetic of the tiled kernels.
 */
#ifndef FLASH_KERNELS_CPU_TILED_ARITHMETIC_H
#define FLASH_KERNELS_CPU_TILED_ARITHMETIC_H

#include <math.h>
#include <stdint.h>

static const float LOG2_E = 1.44269504088896340736f;
static const float LN_2 = 0.69314718055994530942f;

/* Returns the sum of a row's weights as its scaled scores have it. Weights are computed from scores
 * before they are scaled, which can be finite where a scaled score is infinite: then the sum is
 * NaN, or 0 where that is so of all scores, and they are negative. reference: the row's largest
 * score, scaled, as far as fp32 tells it from others that large. */
static inline float sum_of_scaled(float sum, float reference) {
    return reference == INFINITY ? NAN : reference == -INFINITY ? 0 * sum : sum;
}

/* Returns the LSE of a row whose sum is that of exp(score - reference), both scaled; -infinity if
 * it saw no key. */
static inline float row_lse(float reference, float sum) {
    return sum != 0 ? reference + logf(sum) : -INFINITY;
}

static inline int64_t round_up(int64_t n, int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

/* Returns ceil(n / ceil(n / most)): the largest part where n is divided evenly into the fewest
 * parts of at most `most`. */
static inline int64_t even_part(int64_t n, int64_t most) {
    const int64_t n_parts = (n + most - 1) / most;
    return (n + n_parts - 1) / n_parts;
}

static inline int32_t min32(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static inline int32_t max32(int32_t a, int32_t b) {
    return a > b ? a : b;
}

static inline int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

#endif
