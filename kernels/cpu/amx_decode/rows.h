/*
 * This file finds which keys the rows of a decoding task see, and copies blocks that not all of
 * them see: each query sees one key more, and the last keys do not fill a block.
 */
#ifndef FLASH_KERNELS_CPU_AMX_DECODE_ROWS_H
#define FLASH_KERNELS_CPU_AMX_DECODE_ROWS_H

#include "cpu/amx/read.h"
#include "cpu/amx_decode/scratch.h"
#include "cpu/row_cursor.h"
#include "cpu/tiled/in_place.h"

#include <math.h>
#include <string.h>

/* Each query sees what the one before it does, one key further on. So a row that sees any of the
 * task's keys sees some of its first block, and has a reference maximum from there on. If a mask
 * hides what it would see, that is 0 until a score is far above it, and a row whose sum stays too
 * small is computed again on vectors (decode_store()). */
_Static_assert((int)AMX_DECODE_MAX_ROWS <= (int)AMX_SQUARE, "rows begin within one block");

/* These are the task's keys that the rows of each head see. */
typedef struct decode_rows {
    flash_range_t row[AMX_DECODE_MAX_ROWS];
    flash_range_t any;    /* seen by some row */
    flash_range_t common; /* seen by all rows; may be empty */
} decode_rows_t;

static inline decode_rows_t decode_find_rows(const flash_params_t *p, const cpu_task_t *task) {
    decode_rows_t rows = {.any = {INT32_MAX, 0}, .common = {0, INT32_MAX}};
    const int64_t n_rows = task->row_end - task->row_begin;
    flash_range_t keys = {0, 0};
    int64_t query = -1; /* of these keys */
    cpu_row_t r = cpu_row(p, task, 0);
    for (int64_t row = 0; row < n_rows; row++, r = cpu_next_row(p, task, r)) {
        if (r.query != query)
            keys = cpu_row_keys(p, task, r);
        query = r.query;
        rows.row[row] = keys;
        rows.common.begin = max32(rows.common.begin, keys.begin);
        rows.common.end = min32(rows.common.end, keys.end);
        if (keys.begin < keys.end) {
            rows.any.begin = min32(rows.any.begin, keys.begin);
            rows.any.end = max32(rows.any.end, keys.end);
        }
    }
    return rows;
}

/* Says whether the block is a whole one, and all rows see it. */
ALWAYS_INLINE bool all_see_block(const decode_rows_t *rows, flash_range_t block) {
    return rows->common.begin <= block.begin && rows->common.end >= block.end &&
           block.end - block.begin == AMX_SQUARE;
}

/* Returns a bit for each row that sees the key. */
static inline uint32_t rows_that_see(const decode_rows_t *rows, int64_t n_rows, int32_t key) {
    uint32_t seeing = 0;
    for (int64_t row = 0; row < n_rows; row++)
        seeing |= (uint32_t)(rows->row[row].begin <= key && key < rows->row[row].end) << row;
    return seeing;
}

/* ---- A block that not all rows see, at the edge of what they see ---- */

/* Hides the scores that rows do not see; R is as many rows as a head is padded to. */
static inline void hide_unseen_keys(const decode_scratch_t *t, const decode_rows_t *rows,
                                    int32_t first, int R) {
    for (int64_t row = 0; row < t->n_rows; row++) {
        const int32_t begin = rows->row[row].begin - first, end = rows->row[row].end - first;
        for (int32_t i = 0; i < AMX_SQUARE; i++)
            if (i < begin || i >= end)
                t->s[(i % 16 * 2 + i / 16) * R + row] = -INFINITY;
    }
}

/* Hides the keys of a block in holes. */
NEVER_INLINE void hide_holes_from_rows(const decode_scratch_t *t, const cpu_holes_t *holes, int R) {
    for (uint32_t left = holes->word[0]; left != 0; left &= left - 1) {
        const int i = __builtin_ctz(left);
        for (int row = 0; row < R; row++)
            t->s[(i % 16 * 2 + i / 16) * R + row] = -INFINITY;
    }
}

/* These are the rows of K and of V of a block, and those to prefetch meanwhile. */
typedef struct edge_rows {
    row_cursor_t k, v;
    row_cursor_t k_prefetch, v_prefetch;
} edge_rows_t;

/* Copies rows of K or V, of d elements, with zeros in holes and up to a whole block. */
static inline void copy_rows(int64_t d, row_cursor_t from, row_cursor_t prefetch, uint16_t *edge) {
    const size_t row_bytes = (size_t)d * 2;
    for (int64_t i = 0; i < AMX_SQUARE; i++, edge += d) {
        const char *row = cursor_next(&from);
        prefetch_next(&prefetch);
        if (row)
            memcpy(edge, row, row_bytes);
        else
            memset(edge, 0, row_bytes);
    }
}

static inline bool is_finite_key(const uint16_t *key, int64_t d) {
    words_t largest = _mm512_setzero_si512();
    for (int64_t i = 0; i < d; i += AMX_SQUARE)
        largest = _mm512_max_epi16(largest, magnitudes(_mm512_loadu_si512(key + i)));
    return not_finite(FLASH_DTYPE_BF16, largest) == 0;
}

/* Copies K and V of the block. Keys of V that are not finite and not seen by all rows become zeros,
 * since P = 0 of the other rows would make NaN of them. Returns the rows that do see such a key. */
static inline uint32_t copy_edge(const decode_scratch_t *t, const decode_rows_t *rows,
                                 flash_range_t block, const edge_rows_t *from) {
    const uint32_t all = (1u << t->n_rows) - 1;
    const int32_t n = block.end - block.begin;
    uint32_t bad = 0;
    copy_rows(t->d, from->k, from->k_prefetch, t->k_edge);
    copy_rows(t->d_v, from->v, from->v_prefetch, t->v_edge);
    for (int32_t i = 0; i < n; i++) {
        uint16_t *key = t->v_edge + i * t->d_v;
        const uint32_t seeing = rows_that_see(rows, t->n_rows, block.begin + i);
        if (seeing != all && !is_finite_key(key, t->d_v)) {
            memset(key, 0, (size_t)t->d_v * 2);
            bad |= seeing;
        }
    }
    return bad;
}

ALWAYS_INLINE in_place_t edge_in_place(const uint16_t *edge, int64_t d) {
    const char *data = (const char *)edge;
    const in_place_t rows = {.data = data, .prefetch = data, .stride = d, .adjoin = true};
    return rows;
}

#endif
