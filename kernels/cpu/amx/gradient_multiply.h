/*
 * This is the micro-kernel of gradients on tile registers, C = A B and C += A B: 32 rows and 32
 * columns of C at a time, in the registers as tiles.h has them. A has rows of words of two bf16, B
 * a row of words for each word of A.
 */
#ifndef FLASH_KERNELS_CPU_AMX_GRADIENT_MULTIPLY_H
#define FLASH_KERNELS_CPU_AMX_GRADIENT_MULTIPLY_H

#include "cpu/amx/tiles.h"
#include "cpu/prefetch.h"
#include "cpu/tiled/multiply.h"

/* Words of A's rows that a step takes, and lines that it prefetches. */
enum { TILE_STEP = 16, TILE_STEP_LINES = 16 };

/* Configures the tiles. Subnormal numbers stay as they are outside of products. */
ALWAYS_INLINE void gradient_tiles_configure(void) {
    tile_config_t config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = TILE_ROW_BYTES;
        config.rows[i] = TILE_ROWS_MAX;
    }
    tiles_load_config(&config);
}

/* A step has its operands here, and these bytes from row to row. */
typedef struct tile_operands {
    const float *a;
    const float *b;
    const float *a_low; /* A's second 16 rows */
    int64_t a_stride;
    int64_t b_stride;
} tile_operands_t;

ALWAYS_INLINE void load_results(const tile_product_t *product, float *c, const bool low,
                                const bool right) {
    const int64_t stride = product->c_stride * (int64_t)sizeof(float);
    float *c_low = c + TILE_ROWS_MAX * product->c_stride;
    if (!product->accumulate) {
        results_zero();
        return;
    }
    _tile_loadd(0, c, stride);
    if (right)
        _tile_loadd(1, c + VEC_WIDTH, stride);
    if (low)
        _tile_loadd(2, c_low, stride);
    if (low && right)
        _tile_loadd(3, c_low + VEC_WIDTH, stride);
}

ALWAYS_INLINE void store_results(const tile_product_t *product, float *c, const bool low,
                                 const bool right) {
    const int64_t stride = product->c_stride * (int64_t)sizeof(float);
    float *c_low = c + TILE_ROWS_MAX * product->c_stride;
    _tile_stored(0, c, stride);
    if (right)
        _tile_stored(1, c + VEC_WIDTH, stride);
    if (low)
        _tile_stored(2, c_low, stride);
    if (low && right)
        _tile_stored(3, c_low + VEC_WIDTH, stride);
}

/* Multiplies the loaded operands, and loads those of the next step, each as soon as its register is
 * free. */
ALWAYS_INLINE void multiply_step(const tile_operands_t *next, const bool low, const bool right) {
    _tile_dpbf16ps(0, 4, 6);
    if (right)
        _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(4, next->a, next->a_stride);
    if (low)
        _tile_dpbf16ps(2, 5, 6);
    _tile_loadd(6, next->b, next->b_stride);
    if (low && right)
        _tile_dpbf16ps(3, 5, 7);
    if (low)
        _tile_loadd(5, next->a_low, next->a_stride);
    if (right)
        _tile_loadd(7, next->b + VEC_WIDTH, next->b_stride);
}

/* Computes 32 columns of C, or 16. The last step loads its own operands once more. */
ALWAYS_INLINE void multiply_tiles(const tile_product_t *product, int64_t column,
                                  const char *prefetch, const bool low, const bool right) {
    float *c = product->c + column;
    tile_operands_t at = {.a = product->a,
                          .b = product->b + column,
                          .a_low = product->a + TILE_ROWS_MAX * product->a_stride,
                          .a_stride = product->a_stride * (int64_t)sizeof(float),
                          .b_stride = product->b_stride * (int64_t)sizeof(float)};
    load_results(product, c, low, right);
    _tile_loadd(4, at.a, at.a_stride);
    _tile_loadd(6, at.b, at.b_stride);
    if (low)
        _tile_loadd(5, at.a_low, at.a_stride);
    if (right)
        _tile_loadd(7, at.b + VEC_WIDTH, at.b_stride);
    for (int64_t k = 0; k < product->depth; k += TILE_STEP) {
        if (k + TILE_STEP < product->depth) {
            at.a += TILE_STEP;
            at.a_low += TILE_STEP;
            at.b += TILE_STEP * product->b_stride;
        }
        multiply_step(&at, low, right);
        UNROLL for (int i = 0; i < TILE_STEP_LINES / 2; i++)
            prefetch_line(prefetch + i * CACHE_LINE);
        prefetch += TILE_STEP_LINES / 2 * CACHE_LINE;
    }
    store_results(product, c, low, right);
}

/* Computes rows of C, of which there is memory for whole tiles. The depth is a multiple of 16
 * words. */
NEVER_INLINE void multiply_on_tiles(const tile_product_t *product, int rows, int vecs) {
    const bool low = rows > TILE_ROWS_MAX;
    const char *prefetch = product->prefetch;
    tiles_see_stores();
    for (int v = 0; v < vecs; v += 2, prefetch += product->depth * 32) {
        const int64_t column = v * VEC_WIDTH;
        const bool right = v + 1 < vecs;
        if (low && right)
            multiply_tiles(product, column, prefetch, true, true);
        else if (low)
            multiply_tiles(product, column, prefetch, true, false);
        else if (right)
            multiply_tiles(product, column, prefetch, false, true);
        else
            multiply_tiles(product, column, prefetch, false, false);
    }
    tiles_see_stores();
}

#endif
