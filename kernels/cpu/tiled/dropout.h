/*
 * This file computes what dropout multiplies a row's weights by, for many keys at a time.
 */
#ifndef FLASH_KERNELS_CPU_TILED_DROPOUT_H
#define FLASH_KERNELS_CPU_TILED_DROPOUT_H

#include "common/dropout.h"
#include "cpu/tiled/scratch.h"
#include "cpu/vector.h"

/* Keys that are decided about together, and calls of Philox for that: a row needs four for each
 * patch, and half of their words. */
enum { DROPOUT_KEYS = 64, DROPOUT_CALLS = DROPOUT_KEYS / DROPOUT_PATCH * 4 };

/* A row whose weights are dropped. */
typedef struct dropout_row {
    flash_dropout_head_t head;
    int64_t query;
} dropout_row_t;

/* The words that a row needs, for keys 0 ... 7 and for keys 8 ... 15 of each patch. */
typedef struct dropout_words {
    uint32_t near[DROPOUT_CALLS];
    uint32_t far[DROPOUT_CALLS];
} dropout_words_t;

/* Returns a row of the task's heads. */
static inline dropout_row_t dropout_row_of(const tile_scratch_t *t, const flash_params_t *p,
                                           const cpu_task_t *task, int64_t row) {
    const cpu_row_t r = cpu_row(p, task, row % t->head_rows);
    const int64_t head = r.head + row / t->head_rows * p->group;
    const dropout_row_t of = {flash_dropout_head(&p->dropout, p->n_heads, task->batch_index, head),
                              r.query};
    return of;
}

static inline void dropout_words(const dropout_row_t *row, uint32_t patch_k,
                                 dropout_words_t *words) {
    philox_t of_call[DROPOUT_CALLS];
    const uint32_t patch_q = (uint32_t)(row->query / DROPOUT_PATCH);
    const uint32_t lane = flash_dropout_lane(row->query, 0);
    const int half = (int)(row->query % DROPOUT_PATCH / 8);
    for (uint32_t i = 0; i < DROPOUT_CALLS; i++)
        of_call[i] = flash_dropout_words(&row->head, patch_q, patch_k + i / 4, lane + i % 4);
    for (uint32_t i = 0; i < DROPOUT_CALLS; i++) {
        words->near[i] = of_call[i].word[half];
        words->far[i] = of_call[i].word[half + 2];
    }
}

/* Computes the factors of DROPOUT_KEYS keys from a multiple of DROPOUT_PATCH on. */
NEVER_INLINE void dropout_factors_of_patches(const flash_dropout_params_t *dropout,
                                             const dropout_row_t *row, int64_t key,
                                             float factors[DROPOUT_KEYS]) {
    dropout_words_t words;
    dropout_words(row, (uint32_t)(key / DROPOUT_PATCH), &words);
    for (int i = 0; i < DROPOUT_CALLS; i++) {
        float *f = factors + i / 4 * DROPOUT_PATCH + i % 4 * 2;
        f[0] = (words.near[i] & 0xffff) < dropout->threshold ? 0 : dropout->scale;
        f[1] = words.near[i] >> 16 < dropout->threshold ? 0 : dropout->scale;
        f[8] = (words.far[i] & 0xffff) < dropout->threshold ? 0 : dropout->scale;
        f[9] = words.far[i] >> 16 < dropout->threshold ? 0 : dropout->scale;
    }
}

/* Computes the factors of keys key ... key + n - 1. */
static inline void dropout_factors(const flash_dropout_params_t *dropout, const dropout_row_t *row,
                                   int64_t key, int64_t n, float *factors) {
    float of_patches[DROPOUT_KEYS];
    for (int64_t i = 0; i < n;) {
        const int64_t first = (key + i) / DROPOUT_PATCH * DROPOUT_PATCH;
        const int64_t end = min64(n, first + DROPOUT_KEYS - key);
        dropout_factors_of_patches(dropout, row, first, of_patches);
        for (; i < end; i++)
            factors[i] = of_patches[key + i - first];
    }
}

static inline void multiply_by_factors(float *numbers, const float *factors, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        numbers[i] *= factors[i];
}

/* Drops weights of keys key ... key + n - 1. */
NEVER_INLINE void drop_weights(const flash_dropout_params_t *dropout, const dropout_row_t *row,
                               int64_t key, int64_t n, float *weights) {
    float factors[DROPOUT_KEYS];
    for (int64_t i = 0; i < n; i += DROPOUT_KEYS) {
        const int64_t count = min64(DROPOUT_KEYS, n - i);
        dropout_factors(dropout, row, key + i, count, factors);
        multiply_by_factors(weights + i, factors, count);
    }
}

#endif
