/*
 * A mask's elements are read here, at any alignment, and join one score.
 */
#ifndef FLASH_KERNELS_CPU_BIAS_H
#define FLASH_KERNELS_CPU_BIAS_H

#include "common/bias.h"
#include "cpu/convert.h"

#include <math.h>

static inline uint32_t cpu_mask_word(const flash_bias_t *bias, int64_t at) {
    uint32_t word;
    memcpy(&word, (const char *)bias->mask + at * (int64_t)sizeof word, sizeof word);
    return word;
}

/* Adds a mask's number to a score. -infinity hides the key, whatever its score is. */
static inline float cpu_add_number(float score, float number) {
    return number == -INFINITY ? -INFINITY : score + number;
}

/* Returns the key's score with ALiBi and the mask. */
static inline float cpu_biased_score(const flash_bias_t *bias, const flash_bias_row_t *row,
                                     float score, int32_t key) {
    if (row->slope != 0)
        score += flash_bias_alibi(row, key);
    if (!flash_bias_covers(bias, row, key))
        return score;
    const int64_t at = flash_bias_at(bias, row, key);
    if (bias->kind == FLASH_MASK_BITS)
        return flash_bias_shows(cpu_mask_word(bias, at), row, key) ? score : -INFINITY;
    return cpu_add_number(score, element_load(bias->mask, at, bias->dtype));
}

#endif
