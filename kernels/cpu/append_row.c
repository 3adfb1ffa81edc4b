/*
 * This file turns and converts rows in fp32, some pairs at a time, so that a row can be turned in
 * place. Each product and each sum is rounded, on CUDA devices too, so that both give the same
 * bits.
 */
#include "cpu/append_row.h"
#include "cpu/convert.h"

#include <math.h>

enum { AT_A_TIME = 64 }; /* elements */

/* These have a loop for each type and for steps of 1, which compilers can make vectors of. */

static inline __attribute__((always_inline)) void
load_as(const void *data, int32_t dtype, int64_t first, int64_t step, int64_t n, float *x) {
    if (step == 1)
        for (int64_t i = 0; i < n; i++)
            x[i] = element_load(data, first + i, dtype);
    else
        for (int64_t i = 0; i < n; i++)
            x[i] = element_load(data, first + i * step, dtype);
}

static inline __attribute__((always_inline)) void
store_as(void *data, int32_t dtype, int64_t first, int64_t step, int64_t n, const float *x) {
    if (step == 1)
        for (int64_t i = 0; i < n; i++)
            element_store(data, first + i, dtype, x[i]);
    else
        for (int64_t i = 0; i < n; i++)
            element_store(data, first + i * step, dtype, x[i]);
}

/* Loads n elements from `first` on, each `step` behind the one before. e4m3 is only copied. */
static void load(const void *data, int32_t dtype, int64_t first, int64_t step, int64_t n,
                 float *x) {
    DTYPES_KNOWN(5);
    if (dtype == FLASH_DTYPE_FP32)
        load_as(data, FLASH_DTYPE_FP32, first, step, n, x);
    else if (dtype == FLASH_DTYPE_FP16)
        load_as(data, FLASH_DTYPE_FP16, first, step, n, x);
    else
        load_as(data, FLASH_DTYPE_BF16, first, step, n, x);
}

static void store(const append_row_t *row, int64_t first, int64_t step, int64_t n, float *x) {
    DTYPES_KNOWN(5);
    if (row->to_dtype == FLASH_DTYPE_FP32)
        store_as(row->to, FLASH_DTYPE_FP32, first, step, n, x);
    else if (row->to_dtype == FLASH_DTYPE_FP16)
        store_as(row->to, FLASH_DTYPE_FP16, first, step, n, x);
    else if (row->to_dtype == FLASH_DTYPE_BF16)
        store_as(row->to, FLASH_DTYPE_BF16, first, step, n, x);
    else {
        for (int64_t i = 0; i < n; i++)
            x[i] *= row->inverse_scale;
        store_as(row->to, FLASH_DTYPE_E4M3, first, step, n, x);
    }
}

/* Turns pairs pair ... pair + n - 1. */
static void turn(const append_row_t *row, const append_angles_t *angles, int64_t pair, int64_t n) {
    float x[AT_A_TIME], y[AT_A_TIME], cosine[AT_A_TIME], sine[AT_A_TIME];
    const int64_t step = angles->is_interleaved ? 2 : 1;
    const int64_t first = step * pair;
    const int64_t second = first + (angles->is_interleaved ? 1 : angles->n_pairs);
    load(row->from, row->from_dtype, first, step, n, x);
    load(row->from, row->from_dtype, second, step, n, y);
    load(angles->cos, angles->dtype, pair, 1, n, cosine);
    load(angles->sin, angles->dtype, pair, 1, n, sine);
    for (int64_t i = 0; i < n; i++) {
        const float turned_x = x[i] * cosine[i] - y[i] * sine[i];
        const float turned_y = x[i] * sine[i] + y[i] * cosine[i];
        x[i] = turned_x;
        y[i] = turned_y;
    }
    store(row, first, step, n, x);
    store(row, second, step, n, y);
}

static int64_t count_at(int64_t at, int64_t end) {
    return end - at < AT_A_TIME ? end - at : AT_A_TIME;
}

/* Writes the elements that do not turn. */
static void convert(const append_row_t *row, int64_t begin) {
    float x[AT_A_TIME];
    if (row->from_dtype == row->to_dtype) {
        if (row->from != row->to)
            memcpy(element_at_mutable(row->to, begin, row->to_dtype),
                   element_at(row->from, begin, row->from_dtype),
                   (size_t)((row->d_head - begin) * element_size(row->to_dtype)));
        return;
    }
    for (int64_t at = begin; at < row->d_head; at += AT_A_TIME) {
        const int64_t n = count_at(at, row->d_head);
        load(row->from, row->from_dtype, at, 1, n, x);
        store(row, at, 1, n, x);
    }
}

/* ---- Latent tokens ---- */

/* Writes the columns that share a scale, and the scale, so that the largest of them becomes the
 * largest element; a NaN remains in its column only. Columns of zeros have a scale of 1. */
static void append_latent_group(const append_row_t *row, int64_t group) {
    float x[LATENT_GROUP], largest = 0;
    load(row->from, row->from_dtype, group * LATENT_GROUP, 1, LATENT_GROUP, x);
    for (int64_t i = 0; i < LATENT_GROUP; i++) {
        const float magnitude = fabsf(x[i]);
        largest = magnitude > largest ? magnitude : largest;
    }
    const float quotient = largest / LATENT_LARGEST, scale = quotient > 0 ? quotient : 1;
    for (int64_t i = 0; i < LATENT_GROUP; i++)
        x[i] /= scale;
    store_as((char *)row->to + group * LATENT_GROUP, FLASH_DTYPE_E4M3, 0, 1, LATENT_GROUP, x);
    element_store((char *)row->to + LATENT_SCALES_AT, group, FLASH_DTYPE_FP32, scale);
}

static void append_latent(const append_row_t *row) {
    float x[LATENT_ROTARY];
    for (int64_t group = 0; group < LATENT_CODES / LATENT_GROUP; group++)
        append_latent_group(row, group);
    load(row->from, row->from_dtype, LATENT_CODES, 1, LATENT_ROTARY, x);
    store_as((char *)row->to + LATENT_ROTARY_AT, FLASH_DTYPE_BF16, 0, 1, LATENT_ROTARY, x);
}

void append_row(const append_row_t *row, const append_angles_t *angles) {
    if (row->to_dtype == FLASH_DTYPE_LATENT_E4M3) {
        append_latent(row);
        return;
    }
    for (int64_t pair = 0; pair < angles->n_pairs; pair += AT_A_TIME)
        turn(row, angles, pair, count_at(pair, angles->n_pairs));
    convert(row, 2 * (int64_t)angles->n_pairs);
}
