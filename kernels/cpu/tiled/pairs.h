/*
 * This file loads two vectors of elements in the order that costs least:
 *
 *   VEC_DOTS_BF16      words of bf16 of two rows, in the order of vec_mix_bf16
 *   VEC_SPLITS_BF16    bf16: the even elements, then the odd ones
 *   otherwise          the elements' own order
 */
#ifndef FLASH_KERNELS_CPU_TILED_PAIRS_H
#define FLASH_KERNELS_CPU_TILED_PAIRS_H

#include "cpu/convert.h"
#include "cpu/vector.h"

#include <stdbool.h>
#include <string.h>

ALWAYS_INLINE void load_pair(int32_t dtype, const void *from, vec_t pair[2]) {
#if VEC_SPLITS_BF16
    if (dtype == FLASH_DTYPE_BF16) {
        vec_split_bf16(from, pair);
        return;
    }
#endif
    if (dtype == FLASH_DTYPE_E4M3) {
        vec_load_e4m3(from, pair);
        return;
    }
    pair[0] = vec_load(dtype, from);
    pair[1] = vec_load(dtype, element_at(from, VEC_WIDTH, dtype));
}

/* Brings 2 VEC_WIDTH numbers of fp32 from their own order to that in which load_pair() leaves
 * elements of dtype. */
ALWAYS_INLINE void order_as_pair(int32_t dtype, float *numbers) {
    float copy[2 * VEC_WIDTH];
    if (!VEC_SPLITS_BF16 || dtype != FLASH_DTYPE_BF16)
        return;
    memcpy(copy, numbers, sizeof copy);
    for (int i = 0; i < VEC_WIDTH; i++) {
        numbers[i] = copy[2 * i];
        numbers[VEC_WIDTH + i] = copy[2 * i + 1];
    }
}

/* Loads words of 2 VEC_WIDTH columns, from rows that lie stride bytes apart, in that order. */
ALWAYS_INLINE void load_word_pair(int32_t dtype, const char *row, int64_t stride, vec_t pair[2]) {
#if VEC_DOTS_BF16
    (void)dtype;
    vec_mix_bf16(vec_load_bf16(row, 2 * VEC_WIDTH), vec_load_bf16(row + stride, 2 * VEC_WIDTH),
                 pair);
#else
    (void)stride;
    load_pair(dtype, row, pair);
#endif
}

/* Loads words of the first n columns, at most VEC_WIDTH, in their own order. */
ALWAYS_INLINE vec_t load_word(int32_t dtype, const char *row, int64_t stride, int n) {
#if VEC_DOTS_BF16
    vec_t zipped[2];
    (void)dtype;
    vec_zip_bf16(vec_load_bf16(row, n), vec_load_bf16(row + stride, n), zipped);
    return zipped[0];
#else
    (void)stride;
    return n < VEC_WIDTH ? vec_load_first(dtype, row, n) : vec_load(dtype, row);
#endif
}

/* Says whether that is the elements' own order. */
ALWAYS_INLINE bool pairs_are_sorted(int32_t dtype) {
    return !VEC_DOTS_BF16 && !(VEC_SPLITS_BF16 && dtype == FLASH_DTYPE_BF16);
}

/* Brings a pair from that order to the elements' own. */
ALWAYS_INLINE void sort_pair(int32_t dtype, vec_t pair[2]) {
#if VEC_DOTS_BF16
    vec_unmix(pair);
#elif VEC_SPLITS_BF16
    if (dtype == FLASH_DTYPE_BF16)
        vec_join(pair);
#endif
    (void)dtype;
    (void)pair;
}

#endif
