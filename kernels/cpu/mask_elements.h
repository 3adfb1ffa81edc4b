/*
 * A mask's elements are read here, at any alignment: they join one score, or are found to hide
 * keys.
 */
#ifndef FLASH_KERNELS_CPU_MASK_ELEMENTS_H
#define FLASH_KERNELS_CPU_MASK_ELEMENTS_H

#include "common/bias.h"
#include "cpu/convert.h"

#include <math.h>
#include <stdbool.h>

static inline uint32_t cpu_mask_word(const flash_bias_t *bias, int64_t at) {
    uint32_t word;
    memcpy(&word, (const char *)bias->mask + at * (int64_t)sizeof word, sizeof word);
    return word;
}

/* Adds a mask's number to a score. -infinity hides the key, whatever its score is. */
static inline float cpu_add_number(float score, float number) {
    return number == -INFINITY ? -INFINITY : score + number;
}

/* ---- Keys that a mask hides ---- */

/* Returns the bits of a row's columns begin ... end - 1 that are in a word. */
static inline uint32_t cpu_bits_of_columns(int32_t begin, int32_t end, int32_t word) {
    const int32_t first = begin - word * 32, last = end - word * 32;
    const uint32_t from = first > 0 ? UINT32_MAX << first : UINT32_MAX;
    return from & (last < 32 ? ~(UINT32_MAX << last) : UINT32_MAX);
}

static inline bool cpu_some_bit(const flash_bias_t *bias, const flash_bias_row_t *row,
                                int32_t begin, int32_t end) {
    for (int32_t word = begin / 32; word <= (end - 1) / 32; word++)
        if (cpu_mask_word(bias, row->at + word) & cpu_bits_of_columns(begin, end, word))
            return true;
    return false;
}

/* Says whether one of n neighbours differs from the first bytes of `bits`: the first one does, or
 * one differs from the one before it. */
static inline bool cpu_some_other(const void *elements, int64_t n, int64_t size, uint32_t bits) {
    return memcmp(elements, &bits, (size_t)size) != 0 ||
           memcmp(elements, (const char *)elements + size, (size_t)((n - 1) * size)) != 0;
}

/* Says whether one of the row's numbers in columns begin ... end - 1 is not -infinity. */
static inline bool cpu_some_number(const flash_bias_t *bias, const flash_bias_row_t *row,
                                   int32_t begin, int32_t end) {
    const int64_t at = row->at + begin * bias->stride_key;
    DTYPES_KNOWN(7); /* numbers are of no other type */
    const uint32_t infinities = bias->dtype == FLASH_DTYPE_FP32   ? 0xff800000
                                : bias->dtype == FLASH_DTYPE_FP16 ? 0xfc00fc00
                                                                  : 0xff80ff80;
    if (bias->stride_key == 1)
        return cpu_some_other(element_at(bias->mask, at, bias->dtype), end - begin,
                              element_size(bias->dtype), infinities);
    for (int32_t i = 0; i < end - begin; i++)
        if (element_load(bias->mask, at + i * bias->stride_key, bias->dtype) != -INFINITY)
            return true;
    return false;
}

/* Returns the number of the block of FLASH_MASK_BLOCKS that a column is in. */
static inline int32_t cpu_block_of(const flash_bias_t *bias, int64_t column) {
    return (int32_t)column / bias->block.keys;
}

/* Says whether the row sees a block of FLASH_MASK_BLOCKS. */
static inline bool cpu_block_shows(const flash_bias_t *bias, const flash_bias_row_t *row,
                                   int32_t block) {
    return cpu_mask_word(bias, row->at + block / 32) >> block % 32 & 1;
}

/* Says whether the mask leaves any of the row's columns begin ... end - 1 visible, which it has. */
static inline bool cpu_some_column(const flash_bias_t *bias, const flash_bias_row_t *row,
                                   int32_t begin, int32_t end) {
    if (bias->kind == FLASH_MASK_BLOCKS)
        return cpu_some_bit(bias, row, cpu_block_of(bias, begin), cpu_block_of(bias, end - 1) + 1);
    return bias->kind == FLASH_MASK_BITS ? cpu_some_bit(bias, row, begin, end)
                                         : cpu_some_number(bias, row, begin, end);
}

/* Says whether the mask leaves any of the keys visible to the row. There is a mask. */
static inline bool cpu_mask_shows(const flash_bias_t *bias, const flash_bias_row_t *row,
                                  flash_range_t keys) {
    const int64_t begin = (int64_t)keys.begin - row->first_key;
    const int64_t end = (int64_t)keys.end - row->first_key;
    if (begin >= end)
        return false;
    if (begin < 0 || end > bias->n_keys)
        return true;
    return cpu_some_column(bias, row, (int32_t)begin, (int32_t)end);
}

/* ---- One score ---- */

/* Returns the key's score with ALiBi and the mask. */
static inline float cpu_biased_score(const flash_bias_t *bias, const flash_bias_row_t *row,
                                     float score, int32_t key) {
    if (row->slope != 0)
        score += flash_bias_alibi(row, key);
    if (!flash_bias_covers(bias, row, key))
        return score;
    if (bias->kind == FLASH_MASK_BLOCKS)
        return cpu_block_shows(bias, row, cpu_block_of(bias, key - row->first_key)) ? score
                                                                                    : -INFINITY;
    const int64_t at = flash_bias_at(bias, row, key);
    if (bias->kind == FLASH_MASK_BITS)
        return flash_bias_shows(cpu_mask_word(bias, at), row, key) ? score : -INFINITY;
    const float number = element_load(bias->mask, at, bias->dtype);
    return cpu_add_number(score, flash_scaled_number(number, row->factor));
}

#endif
