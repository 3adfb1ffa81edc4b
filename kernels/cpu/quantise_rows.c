/*
 * This file quantises in fp32, a few columns at a time: what a Hadamard matrix turns together fits
 * into one piece.
 */
#include "cpu/quantise_rows.h"

#include "common/quantise.h"
#include "cpu/convert.h"

#include <math.h>
#include <stdbool.h>

enum { PIECE = QUANTISE_MOST_TURNED }; /* columns */

quantise_rows_t quantise_row_of(const quantise_rows_t *rows, int64_t i) {
    quantise_rows_t row = *rows;
    row.x = (const char *)rows->x + i * rows->x_stride;
    row.codes = rows->codes + i * rows->codes_stride;
    row.n = 1;
    return row;
}

static int64_t count_at(const quantise_rows_t *rows, int64_t column) {
    return rows->d - column < PIECE ? rows->d - column : PIECE;
}

/* This has a loop for each type, which compilers can make vectors of. */
static inline __attribute__((always_inline)) void load_as(const void *row, int32_t dtype,
                                                          int64_t first, int64_t n, float *x) {
    for (int64_t i = 0; i < n; i++)
        x[i] = element_load(row, first + i, dtype);
}

static void load(const quantise_rows_t *rows, int64_t row, int64_t first, int64_t n, float *x) {
    const void *from = (const char *)rows->x + row * rows->x_stride;
    DTYPES_KNOWN(7);
    if (rows->dtype == FLASH_DTYPE_FP32)
        load_as(from, FLASH_DTYPE_FP32, first, n, x);
    else if (rows->dtype == FLASH_DTYPE_FP16)
        load_as(from, FLASH_DTYPE_FP16, first, n, x);
    else
        load_as(from, FLASH_DTYPE_BF16, first, n, x);
}

/* ---- Means ---- */

static void add_finite(const float *x, int64_t n, double *sum, int64_t *counts) {
    for (int64_t i = 0; i < n; i++) {
        const bool finite = fabsf(x[i]) <= 0x1.fffffep127f;
        sum[i] += finite ? (double)x[i] : 0;
        counts[i] += finite;
    }
}

static void find_mean_of(const quantise_rows_t *rows, int64_t first, int64_t n) {
    float x[PIECE];
    double sum[PIECE] = {0};
    int64_t counts[PIECE] = {0};
    for (int64_t row = 0; row < rows->n; row++) {
        load(rows, row, first, n, x);
        add_finite(x, n, sum, counts);
    }
    for (int64_t i = 0; i < n; i++)
        element_store(rows->mean, first + i, FLASH_DTYPE_FP32,
                      counts[i] > 0 ? (float)(sum[i] / (double)counts[i]) : 0);
}

void quantise_find_mean(const quantise_rows_t *rows) {
    for (int64_t first = 0; first < rows->d; first += PIECE)
        find_mean_of(rows, first, count_at(rows, first));
}

/* ---- Values ---- */

/* Multiplies n numbers, a power of two, by the Hadamard matrix of Sylvester, over sqrt(n). Elements
 * shrink before they are added, so that no sum of finite ones is as large as it could be. */
static void turn(float *x, int64_t n) {
    const float shrink = quantise_shrink(n);
    for (int64_t i = 0; i < n; i++)
        x[i] *= shrink;
    for (int64_t half = 1; half < n; half *= 2)
        for (int64_t block = 0; block < n; block += 2 * half)
            for (int64_t i = block; i < block + half; i++) {
                const float a = x[i], b = x[i + half];
                x[i] = a + b;
                x[i + half] = a - b;
            }
}

/* Loads columns of a row, less their mean and turned. */
static void load_values(const quantise_rows_t *rows, int64_t row, int64_t first, int64_t n,
                        float *x) {
    float mean[PIECE];
    load(rows, row, first, n, x);
    if (rows->mean) {
        load_as(rows->mean, FLASH_DTYPE_FP32, first, n, mean);
        for (int64_t i = 0; i < n; i++)
            x[i] -= mean[i];
    }
    for (int64_t i = 0; rows->turned > 1 && i < n; i += rows->turned)
        turn(x + i, rows->turned);
}

float quantise_largest(const quantise_rows_t *rows) {
    float x[PIECE], largest = 0;
    for (int64_t row = 0; row < rows->n; row++)
        for (int64_t first = 0; first < rows->d; first += PIECE) {
            const int64_t n = count_at(rows, first);
            load_values(rows, row, first, n, x);
            for (int64_t i = 0; i < n; i++) {
                const float magnitude = fabsf(x[i]);
                const bool larger = magnitude > largest && magnitude <= 0x1.fffffep127f;
                largest = larger ? magnitude : largest;
            }
        }
    return largest;
}

void quantise_store(const quantise_rows_t *rows, float scale) {
    float x[PIECE];
    for (int64_t row = 0; row < rows->n; row++)
        for (int64_t first = 0; first < rows->d; first += PIECE) {
            const int64_t n = count_at(rows, first);
            uint8_t *to = rows->codes + row * rows->codes_stride + first;
            load_values(rows, row, first, n, x);
            for (int64_t i = 0; i < n; i++)
                x[i] = fabsf(x[i]) <= 0x1.fffffep127f ? x[i] / scale : NAN;
            for (int64_t i = 0; i < n; i++)
                to[i] = e4m3_from_fp32(x[i]);
        }
}
