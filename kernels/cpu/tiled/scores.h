/*
 * This file computes S = Q K^T for a block of packed keys.
 */
#ifndef FLASH_KERNELS_CPU_TILED_SCORES_H
#define FLASH_KERNELS_CPU_TILED_SCORES_H

#include "cpu/tiled/multiply.h"
#include "cpu/tiled/pack.h"

/* Computes the scores of a tile of rows and the keys of one panel that any of the rows sees. */
static inline void score_tile(const tile_scratch_t *t, flash_range_t block, int64_t panel_begin,
                              int64_t row, int rows) {
    flash_range_t common, any;
    tile_columns(t, block, row, rows, &common, &any);
    const int64_t d_words = count_words(t->d);
    const panel_t panel = panel_of(panel_begin, d_words, t->c_pad);
    const int64_t begin = any.begin > panel_begin ? any.begin / VEC_WIDTH * VEC_WIDTH : panel_begin;
    const int64_t end = min64(panel_begin + panel.width, any.end);
    if (begin >= end)
        return;
    const tile_product_t product = {.a = t->q + row * t->d_pad,
                                    .a_stride = t->d_pad,
                                    .a_step = 1,
                                    .b = t->k + panel.offset + (begin - panel_begin),
                                    .b_stride = panel.width,
                                    .c = t->s + row * t->c_pad + begin,
                                    .c_stride = t->c_pad,
                                    .depth = d_words,
                                    .accumulate = false,
                                    .prefetch =
                                        panel_prefetch(t->k + panel.offset, panel, d_words, row)};
    multiply_packed(&product, rows, (int)((end - begin + VEC_WIDTH - 1) / VEC_WIDTH));
}

static inline void score_packed(const tile_scratch_t *t, flash_range_t block) {
    for (int64_t panel = 0; panel < block.end - block.begin; panel += TILE_COLUMNS)
        for (int64_t row = 0; row < t->n_rows; row += TILE_ROWS)
            score_tile(t, block, panel, row, (int)min64(TILE_ROWS, t->n_rows - row));
}

#endif
