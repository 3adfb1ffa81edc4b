/*
 * This file turns and converts rows in fp32, some pairs at a time, so that a row can be turned in
 * place. Each product and each sum is rounded, on CUDA devices too, so that both give the same
 * bits.
 */
#include "cpu/append_row.h"
#include "cpu/convert.h"
#include "cpu/quantise.h"

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

/* Loads n elements from `first` on, each `step` behind the one before, of fp16, bf16, fp32 or e4m3.
 */
static void load(const void *data, int32_t dtype, int64_t first, int64_t step, int64_t n,
                 float *x) {
    DTYPES_KNOWN(7);
    if (dtype == FLASH_DTYPE_FP32)
        load_as(data, FLASH_DTYPE_FP32, first, step, n, x);
    else if (dtype == FLASH_DTYPE_FP16)
        load_as(data, FLASH_DTYPE_FP16, first, step, n, x);
    else if (dtype == FLASH_DTYPE_E4M3)
        load_as(data, FLASH_DTYPE_E4M3, first, step, n, x);
    else
        load_as(data, FLASH_DTYPE_BF16, first, step, n, x);
}

static void store(const append_row_t *row, int64_t first, int64_t step, int64_t n, float *x) {
    DTYPES_KNOWN(7);
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

/* These elements of a row are turned together: n pairs, of which the first elements, and the second
 * ones, lie `step` behind each other. */
typedef struct turned_pairs {
    int64_t first;
    int64_t second;
    int64_t step;
} turned_pairs_t;

static turned_pairs_t pairs_from(const append_angles_t *angles, int64_t pair) {
    const int64_t step = angles->is_interleaved ? 2 : 1;
    const int64_t first = step * pair;
    return (turned_pairs_t){first, first + (angles->is_interleaved ? 1 : angles->n_pairs), step};
}

/* Loads pairs pair ... pair + n - 1, turned: their first elements and their second ones. */
static void load_turned(const append_row_t *row, const append_angles_t *angles, int64_t pair,
                        int64_t n, float *x, float *y) {
    float cosine[AT_A_TIME], sine[AT_A_TIME];
    const turned_pairs_t pairs = pairs_from(angles, pair);
    load(row->from, row->from_dtype, pairs.first, pairs.step, n, x);
    load(row->from, row->from_dtype, pairs.second, pairs.step, n, y);
    load(angles->cos, angles->dtype, pair, 1, n, cosine);
    load(angles->sin, angles->dtype, pair, 1, n, sine);
    for (int64_t i = 0; i < n; i++) {
        const float turned_x = x[i] * cosine[i] - y[i] * sine[i];
        const float turned_y = x[i] * sine[i] + y[i] * cosine[i];
        x[i] = turned_x;
        y[i] = turned_y;
    }
}

/* Turns pairs pair ... pair + n - 1. */
static void turn(const append_row_t *row, const append_angles_t *angles, int64_t pair, int64_t n) {
    float x[AT_A_TIME], y[AT_A_TIME];
    const turned_pairs_t pairs = pairs_from(angles, pair);
    load_turned(row, angles, pair, n, x, y);
    store(row, pairs.first, pairs.step, n, x);
    store(row, pairs.second, pairs.step, n, y);
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

/* ---- Quantised blocks ---- */

/* Loads n columns from number `first` on, n a multiple of 2, which turn as interleaved pairs. */
static void load_interleaved(const append_row_t *row, const append_angles_t *angles, int64_t first,
                             int64_t n, float *to) {
    float x[AT_A_TIME], y[AT_A_TIME];
    load_turned(row, angles, first / 2, n / 2, x, y);
    for (int64_t i = 0; i < n / 2; i++) {
        to[2 * i] = x[i];
        to[2 * i + 1] = y[i];
    }
}

/* Loads n columns from number `first` on, which are first elements of pairs, or second ones. */
static void load_half(const append_row_t *row, const append_angles_t *angles, int64_t first,
                      int64_t n, float *to) {
    float other[AT_A_TIME];
    if (first < angles->n_pairs)
        load_turned(row, angles, first, n, to, other);
    else
        load_turned(row, angles, first - angles->n_pairs, n, other, to);
}

/* Loads columns from number `first` on, at most n, that all turn alike. Returns how many. */
static int64_t load_alike(const append_row_t *row, const append_angles_t *angles, int64_t first,
                          int64_t n, float *to) {
    const int64_t n_pairs = angles->n_pairs, turned = 2 * n_pairs;
    const bool interleaved = angles->is_interleaved != 0;
    const int64_t end = first >= turned ? row->d_head : first < n_pairs ? n_pairs : turned;
    const int64_t alike = interleaved && first < turned ? turned - first : end - first;
    const int64_t count = alike < n ? alike : n;
    if (first >= turned)
        load(row->from, row->from_dtype, first, 1, count, to);
    else if (interleaved)
        load_interleaved(row, angles, first, count, to);
    else
        load_half(row, angles, first, count, to);
    return count;
}

static void append_quantised(const append_row_t *row, const append_angles_t *angles) {
    char *block = row->to;
    for (int64_t first = 0; first < row->d_head; first += FLASH_QUANT_BLOCK) {
        float x[FLASH_QUANT_BLOCK];
        for (int64_t i = 0; i < FLASH_QUANT_BLOCK;)
            i += load_alike(row, angles, first + i, FLASH_QUANT_BLOCK - i, x + i);
        quantise(row->to_dtype, x, block);
        block += quant_block_bytes(row->to_dtype);
    }
}

void append_row(const append_row_t *row, const append_angles_t *angles) {
    if (row->to_dtype == FLASH_DTYPE_LATENT_E4M3) {
        append_latent(row);
        return;
    }
    if (has_quant_blocks(row->to_dtype)) {
        append_quantised(row, angles);
        return;
    }
    for (int64_t pair = 0; pair < angles->n_pairs; pair += AT_A_TIME)
        turn(row, angles, pair, count_at(pair, angles->n_pairs));
    convert(row, 2 * (int64_t)angles->n_pairs);
}
