/*
 * This file computes what dropout multiplies a row's weights by, for many keys at a time, in loops
 * that compilers turn into vectors.
 */
#ifndef FLASH_KERNELS_CPU_TILED_DROPOUT_H
#define FLASH_KERNELS_CPU_TILED_DROPOUT_H

#include "common/dropout.h"
#include "cpu/tiled/scratch.h"
#include "cpu/vector.h"

#include <string.h>

/* Keys that are decided about together, and calls of Philox for that: a row needs four for each
 * patch, and half of their words. */
enum { DROPOUT_KEYS = 64, DROPOUT_CALLS = DROPOUT_KEYS / DROPOUT_PATCH * 4 };

/* A row whose weights are dropped. */
typedef struct dropout_row {
    flash_dropout_head_t head;
    int64_t query;
} dropout_row_t;

/* The words of these calls, by their number in a call. */
typedef struct dropout_words {
    uint32_t word[4][DROPOUT_CALLS];
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

static inline void dropout_counters(const dropout_row_t *row, uint32_t patch_k,
                                    dropout_words_t *counters) {
    const uint32_t patch_q = (uint32_t)(row->query / DROPOUT_PATCH);
    const uint32_t lane = flash_dropout_lane(row->query, 0);
    for (uint32_t i = 0; i < DROPOUT_CALLS; i++) {
        const philox_t counter =
            flash_dropout_counter(&row->head, patch_q, patch_k + i / 4, lane + i % 4);
        for (int word = 0; word < 4; word++)
            counters->word[word][i] = counter.word[word];
    }
}

/* Turns counters into their words, as philox_words() does. */
static inline void dropout_words(const dropout_row_t *row, dropout_words_t *words) {
    uint32_t key_0 = row->head.key_0, key_1 = row->head.key_1;
    uint32_t(*w)[DROPOUT_CALLS] = words->word;
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        for (int i = 0; i < DROPOUT_CALLS; i++) {
            const uint64_t even = PHILOX_EVEN * w[0][i], odd = PHILOX_ODD * w[2][i];
            w[0][i] = (uint32_t)(odd >> 32) ^ w[1][i] ^ key_0;
            w[1][i] = (uint32_t)odd;
            w[2][i] = (uint32_t)(even >> 32) ^ w[3][i] ^ key_1;
            w[3][i] = (uint32_t)even;
        }
        key_0 += PHILOX_KEY_0_STEP;
        key_1 += PHILOX_KEY_1_STEP;
    }
}

/* Computes the factors of DROPOUT_KEYS keys from a multiple of DROPOUT_PATCH on. */
NEVER_INLINE void dropout_factors_of_patches(const flash_dropout_params_t *dropout,
                                             const dropout_row_t *row, int64_t key,
                                             float factors[DROPOUT_KEYS]) {
    dropout_words_t words;
    dropout_counters(row, (uint32_t)(key / DROPOUT_PATCH), &words);
    dropout_words(row, &words);
    const int half = (int)(row->query % DROPOUT_PATCH / 8);
    /* of four words for keys 0 ... 7 and four for 8 ... 15 the halves lie in the keys' order */
    uint16_t bits[DROPOUT_KEYS];
    for (int i = 0; i < DROPOUT_CALLS; i += 4) {
        memcpy(bits + 4 * i, words.word[half] + i, 4 * sizeof(uint32_t));
        memcpy(bits + 4 * i + 8, words.word[half + 2] + i, 4 * sizeof(uint32_t));
    }
    const uint32_t threshold = dropout->threshold;
    const float scale = dropout->scale;
    for (int i = 0; i < DROPOUT_KEYS; i++)
        factors[i] = bits[i] < threshold ? 0 : scale;
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
