/*
 * This file finds which of a row's weights stay, a bit for each, for many keys at a time, by Philox
 * in vectors of calls (calls_t of tiled.h). Queries q and q + 8 of a patch are decided about by the
 * same calls, so that the bits of the latter are kept until its turn comes.
 */
#ifndef FLASH_KERNELS_CPU_TILED_DROPOUT_H
#define FLASH_KERNELS_CPU_TILED_DROPOUT_H

#include "common/dropout.h"
#include "cpu/tiled/arithmetic.h"
#include "cpu/tiled/scratch.h"
#include "cpu/vector.h"

#include <string.h>

/* Keys whose bits are found together at most, and bytes of them: there is room for patches at both
 * ends, for the last vectors of calls, and for a load of 4 bytes anywhere. */
enum { KEPT_KEYS = 256, KEPT_BYTES = 64 };

/* Rows that wait for their turn at most. */
enum { KEPT_HEADS = 8, KEPT_ROWS = 8 * KEPT_HEADS };

/* Queries that share calls of Philox are so far apart. */
enum { DROPOUT_TWIN = DROPOUT_PATCH / 2 };

/* A row whose weights are dropped. */
typedef struct dropout_row {
    flash_dropout_head_t head;
    int64_t query;
} dropout_row_t;

/* The bits of a row's keys: 1 where the weight stays. begin, end: whole patches. */
typedef struct kept_keys {
    int64_t query; /* -1: none */
    uint32_t head;
    int64_t begin;
    int64_t end;
    uint8_t bits[KEPT_BYTES];
} kept_keys_t;

/* Bits of rows whose turn has not come, in the place of their query and head. */
typedef struct kept_rows {
    kept_keys_t row[KEPT_ROWS];
} kept_rows_t;

static inline void start_kept_rows(kept_rows_t *kept) {
    for (int i = 0; i < KEPT_ROWS; i++)
        kept->row[i].query = -1;
}

/* Returns a row of the task's heads. */
static inline dropout_row_t dropout_row_of(const tile_scratch_t *t, const flash_params_t *p,
                                           const cpu_task_t *task, int64_t row) {
    const cpu_row_t r = cpu_row(p, task, row % t->head_rows);
    const int64_t head = r.head + row / t->head_rows * p->group;
    const dropout_row_t of = {flash_dropout_head(&p->dropout, p->n_heads, task->batch_index, head),
                              r.query};
    return of;
}

/* ---- Philox ---- */

/* Calls of Philox: a word of each call is the lower half of a 64-bit lane. */
typedef struct dropout_calls {
    calls_t word[4];
} dropout_calls_t;

/* Returns the calls of a row for the patches of a vector of calls. */
ALWAYS_INLINE dropout_calls_t dropout_counters(const dropout_row_t *row, uint32_t patch_k) {
    static const uint64_t lanes[8] = {
        0, 1ull << DROPOUT_INDEX_BITS, 2ull << DROPOUT_INDEX_BITS, 3ull << DROPOUT_INDEX_BITS,
        0, 1ull << DROPOUT_INDEX_BITS, 2ull << DROPOUT_INDEX_BITS, 3ull << DROPOUT_INDEX_BITS};
    static const uint64_t patches[8] = {0, 0, 0, 0, 1, 1, 1, 1};
    const philox_t first = flash_dropout_counter(&row->head, (uint32_t)(row->query / DROPOUT_PATCH),
                                                 patch_k, flash_dropout_lane(row->query, 0));
    const dropout_calls_t calls = {{calls_add(calls_set1(first.word[0]), calls_load(lanes)),
                                    calls_add(calls_set1(first.word[1]), calls_load(patches)),
                                    calls_set1(first.word[2]), calls_set1(first.word[3])}};
    return calls;
}

/* Turns counters into their words, as philox_words() does. */
ALWAYS_INLINE void dropout_words(const dropout_row_t *row, dropout_calls_t *calls, const int n) {
    const calls_t even_factor = calls_set1(PHILOX_EVEN), odd_factor = calls_set1(PHILOX_ODD);
    uint32_t key_0 = row->head.key_0, key_1 = row->head.key_1;
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        const calls_t keys_0 = calls_set1(key_0), keys_1 = calls_set1(key_1);
        UNROLL for (int i = 0; i < n; i++) {
            calls_t *w = calls[i].word;
            const calls_t even = calls_multiply(w[0], even_factor);
            const calls_t odd = calls_multiply(w[2], odd_factor);
            w[0] = calls_mix(odd, w[1], keys_0);
            w[1] = odd;
            w[2] = calls_mix(even, w[3], keys_1);
            w[3] = even;
        }
        key_0 += PHILOX_KEY_0_STEP;
        key_1 += PHILOX_KEY_1_STEP;
    }
}

enum { CALLS_PATCHES = CALLS / 4, CALLS_BYTES = CALLS / 2 }; /* of a vector */

/* Finds the bits of n vectors of calls, of the row's query and its twin: [0] is the one that comes
 * first. */
ALWAYS_INLINE void find_bits_of(const dropout_row_t *row, uint32_t threshold, int64_t patch,
                                uint8_t *to[2], const int n) {
    dropout_calls_t calls[CALLS_TOGETHER];
    UNROLL for (int i = 0; i < n; i++) calls[i] =
        dropout_counters(row, (uint32_t)(patch + i * CALLS_PATCHES));
    dropout_words(row, calls, n);
    UNROLL for (int i = 0; i < n; i++) {
        for (int twin = 0; twin < 2; twin++) {
            const uint32_t bits =
                calls_kept(calls[i].word[twin], calls[i].word[twin + 2], threshold);
            memcpy(to[twin] + i * CALLS_BYTES, &bits, CALLS_BYTES);
        }
    }
}

/* Finds the bits of keys begin ... end - 1, whole patches. */
NEVER_INLINE void find_bits(const flash_dropout_params_t *dropout, const dropout_row_t *row,
                            int64_t begin, int64_t end, uint8_t *first, uint8_t *second) {
    const int64_t last = end / DROPOUT_PATCH;
    uint8_t *to[2] = {first, second};
    if (dropout->threshold > 0xffff) { /* nothing stays */
        memset(first, 0, KEPT_BYTES);
        memset(second, 0, KEPT_BYTES);
        return;
    }
    for (int64_t patch = begin / DROPOUT_PATCH; patch < last;) {
        const bool many = last - patch > CALLS_TOGETHER / 2 * CALLS_PATCHES;
        const int n = many ? CALLS_TOGETHER : CALLS_TOGETHER / 2;
        if (many)
            find_bits_of(row, dropout->threshold, patch, to, CALLS_TOGETHER);
        else
            find_bits_of(row, dropout->threshold, patch, to, CALLS_TOGETHER / 2);
        patch += n * CALLS_PATCHES;
        to[0] += n * CALLS_BYTES;
        to[1] += n * CALLS_BYTES;
    }
}

/* ---- Rows ---- */

static inline kept_keys_t *kept_place(kept_rows_t *rows, const dropout_row_t *row) {
    const int64_t place = row->query % DROPOUT_TWIN * KEPT_HEADS + row->head.head % KEPT_HEADS;
    return &rows->row[place];
}

/* Finds which of at most KEPT_KEYS keys begin ... end - 1 a row keeps. rows: rows whose turn has
 * not come; NULL: none are kept. own: room for the row's bits. */
NEVER_INLINE const kept_keys_t *find_kept(const flash_dropout_params_t *dropout,
                                          const dropout_row_t *row, int64_t begin, int64_t end,
                                          kept_rows_t *rows, kept_keys_t *own) {
    kept_keys_t other, *twin = rows ? kept_place(rows, row) : &other;
    const bool is_second = row->query % DROPOUT_PATCH >= DROPOUT_TWIN;
    if (rows && twin->query == row->query && twin->head == row->head.head && twin->begin <= begin &&
        twin->end >= end)
        return twin;
    own->query = row->query;
    own->head = row->head.head;
    own->begin = begin / DROPOUT_PATCH * DROPOUT_PATCH;
    /* under a causal mask the twin sees as many keys more */
    own->end = round_up(end + (is_second ? 0 : DROPOUT_TWIN), DROPOUT_PATCH);
    if (is_second) {
        find_bits(dropout, row, own->begin, own->end, other.bits, own->bits);
        return own;
    }
    find_bits(dropout, row, own->begin, own->end, own->bits, twin->bits);
    twin->query = row->query + DROPOUT_TWIN;
    twin->head = own->head;
    twin->begin = own->begin;
    twin->end = own->end;
    return own;
}

/* Returns what the weights of VEC_WIDTH keys from `key` on are multiplied by: 0 or `scales`. */
ALWAYS_INLINE vec_t kept_factors(const kept_keys_t *kept, int64_t key, vec_t scales) {
    const int64_t at = key - kept->begin;
    uint32_t bits;
    memcpy(&bits, kept->bits + at / 8, sizeof bits);
    return vec_keep(scales, bits >> at % 8);
}

/* How weights of a row are dropped. */
typedef struct dropping {
    const flash_dropout_params_t *dropout;
    dropout_row_t row;
    int64_t key;       /* of the row's first number in memory */
    kept_rows_t *rows; /* as in find_kept() */
} dropping_t;

/* Multiplies numbers first ... last - 1 of a row, whole vectors and at most KEPT_KEYS, by the
 * factors of their keys. */
static inline void multiply_by_factors(float *numbers, int64_t first, int64_t last,
                                       const kept_keys_t *kept, const dropping_t *dropping) {
    const vec_t scales = vec_set1(dropping->dropout->scale);
    for (int64_t i = first; i < last; i += VEC_WIDTH)
        vec_store(FLASH_DTYPE_FP32, numbers + i,
                  vec_mul(kept_factors(kept, dropping->key + i, scales),
                          vec_load(FLASH_DTYPE_FP32, numbers + i)));
}

#endif
