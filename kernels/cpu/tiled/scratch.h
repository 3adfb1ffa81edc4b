/*
 * This file divides a task's scratch memory, and says which of a block's keys its rows see.
 */
#ifndef FLASH_KERNELS_CPU_TILED_SCRATCH_H
#define FLASH_KERNELS_CPU_TILED_SCRATCH_H

#include "cpu/cpu_kernel.h"
#include "cpu/cpu_scratch.h"
#include "cpu/tiled/arithmetic.h"
#include "cpu/tiled/words.h"

#include <stdbool.h>

/* These are the parts of a task's scratch, in this order: tiled_scratch_size() bytes, each part
 * aligned to 64. K and V may also be a block of shared packed keys. */
typedef struct tile_scratch {
    float *q; /* [B_r][d_pad], zeros beyond d; for packed keys in words, d_pad apart */
    float *o; /* [B_r][d_v_pad], not normalised */
    float *s; /* [B_r][c_pad], scores, then P in words; column 0 is the block's first key */
    float *k; /* panels of K^T (pack.h), words [d_words][c_pad]; room for tiled_k_elements() */
    float *v; /* panels of V, words [c_words][d_v_pad], right after K's */
    int32_t *v_is_finite; /* after V */
    float *reference;     /* [B_r], reference maximum: scores are relative to it */
    float *sum;           /* [B_r][16], of P, a sum for each lane */
    int32_t *begin;       /* [B_r], keys that the row sees: begin ... end - 1 */
    int32_t *end;         /* [B_r] */
    int32_t *has_totals;  /* [B_r], whether the next two are in use (totals.h) */
    double *sum_total;    /* [B_r][16] */
    double *o_total;      /* [B_r][d_v_pad] */
    int64_t d;            /* of Q and K */
    int64_t d_v;          /* of V and O */
    int64_t d_pad;        /* a multiple of 16, as are d_v_pad and c_pad */
    int64_t d_v_pad;
    int64_t c_pad;
    int64_t n_rows; /* of all heads of the task, head after head */
    int64_t head_rows;
} tile_scratch_t;

/* Makes block `block` of those at `packed` K and V. Returns where it ends. */
static inline void *use_packed_block(tile_scratch_t *t, void *packed, int64_t block) {
    const head_dims_t dims = {t->d, t->d_v};
    const int32_t B_c = (int32_t)t->c_pad;
    const int64_t size = (int64_t)tiled_block_size(B_c, dims, WORD_ELEMENT_SIZE);
    const int64_t k_words = (int64_t)tiled_k_elements(B_c, dims) / WORD_ELEMENTS;
    const int64_t v_words = t->c_pad * t->d_v_pad / WORD_ELEMENTS;
    t->k = (float *)(void *)((char *)packed + block * size);
    t->v = t->k + k_words;
    t->v_is_finite = (int32_t *)(void *)(t->v + v_words);
    return (char *)t->k + size;
}

static inline tile_scratch_t divide_scratch(void *memory, int64_t rows, int32_t B_c,
                                            head_dims_t dims, int64_t head_rows, int64_t n_heads) {
    const int64_t r = round_up(rows, 16);
    tile_scratch_t t = {
        .d = dims.qk, .d_v = dims.v, .n_rows = n_heads * head_rows, .head_rows = head_rows};
    t.d_pad = round_up(dims.qk, 16);
    t.d_v_pad = round_up(dims.v, 16);
    t.c_pad = round_up(B_c, 16);
    t.q = memory;
    t.o = t.q + r * t.d_pad;
    t.s = t.o + r * t.d_v_pad;
    t.reference = use_packed_block(&t, t.s + r * t.c_pad, 0);
    t.sum = t.reference + r;
    t.begin = (int32_t *)(t.sum + r * 16);
    t.end = t.begin + r;
    t.has_totals = t.end + r;
    t.sum_total = (double *)(void *)(t.has_totals + r);
    t.o_total = t.sum_total + r * 16;
    return t;
}

/* Leaves out the first n rows. */
ALWAYS_INLINE void skip_rows(tile_scratch_t *t, int64_t n) {
    t->q += n * t->d_pad;
    t->o += n * t->d_v_pad;
    t->s += n * t->c_pad;
    t->reference += n;
    t->sum += n * 16;
    t->begin += n;
    t->end += n;
    t->has_totals += n;
    t->sum_total += n * 16;
    t->o_total += n * t->d_v_pad;
}

ALWAYS_INLINE tile_scratch_t rows_of_heads(const tile_scratch_t *t, int64_t head, int64_t n) {
    tile_scratch_t rows = *t;
    skip_rows(&rows, head * t->head_rows);
    rows.n_rows = n * t->head_rows;
    return rows;
}

ALWAYS_INLINE tile_scratch_t rows_of_head(const tile_scratch_t *t, int64_t head) {
    return rows_of_heads(t, head, 1);
}

/* Says whether all rows see all keys of the block. */
static inline bool rows_see(const tile_scratch_t *t, flash_range_t block) {
    bool see = true;
    for (int64_t row = 0; row < t->n_rows; row++)
        see = see && t->begin[row] <= block.begin && t->end[row] >= block.end;
    return see;
}

/* Returns the keys of the block that the row sees, counted from the block's first key. */
static inline flash_range_t row_columns(const tile_scratch_t *t, flash_range_t block, int64_t row) {
    const flash_range_t columns = {max32(t->begin[row], block.begin) - block.begin,
                                   min32(t->end[row], block.end) - block.begin};
    return columns;
}

/* Finds the keys that all rows of a tile see (common), and those that any of them sees (any);
 * either may be empty. */
static inline void tile_columns(const tile_scratch_t *t, flash_range_t block, int64_t row, int rows,
                                flash_range_t *common, flash_range_t *any) {
    *common = row_columns(t, block, row);
    *any = *common;
    for (int r = 1; r < rows; r++) {
        const flash_range_t columns = row_columns(t, block, row + r);
        common->begin = max32(common->begin, columns.begin);
        common->end = min32(common->end, columns.end);
        if (columns.begin >= columns.end)
            continue;
        const bool first = any->begin >= any->end;
        any->begin = first ? columns.begin : min32(any->begin, columns.begin);
        any->end = first ? columns.end : max32(any->end, columns.end);
    }
}

#endif
