/*
 * This file finds the packed rows that see some of a block of keys: the inverse of
 * flash_visible_keys().
 */
#ifndef FLASH_KERNELS_CPU_SEEING_ROWS_H
#define FLASH_KERNELS_CPU_SEEING_ROWS_H

#include "common/params.h"
#include "common/sequence.h"

#include <stdint.h>

/* A half-open range of packed rows; empty when begin >= end. */
typedef struct cpu_row_range {
    int64_t begin;
    int64_t end;
} cpu_row_range_t;

static inline void cpu_narrow_rows(cpu_row_range_t *range, int64_t begin, int64_t end) {
    range->begin = begin > range->begin ? begin : range->begin;
    range->end = end < range->end ? end : range->end;
}

/* Returns the queries of a sequence that see some of the keys. Query i stands at key i + shift. */
static inline cpu_row_range_t cpu_seeing_queries(const flash_params_t *p, const flash_sequence_t *s,
                                                 flash_range_t keys) {
    const int64_t shift = (int64_t)s->len_k - s->len_q + p->diagonal_offset;
    cpu_row_range_t queries = {0, s->len_q};
    if (p->window_left >= 0)
        cpu_narrow_rows(&queries, 0, (int64_t)keys.end + p->window_left - shift);
    if (p->window_right >= 0)
        cpu_narrow_rows(&queries, (int64_t)keys.begin - p->window_right - shift, s->len_q);
    if (p->attention_chunk > 0) {
        const int64_t first = keys.begin / p->attention_chunk;
        const int64_t last = (keys.end - 1) / p->attention_chunk;
        cpu_narrow_rows(&queries, first * p->attention_chunk - shift,
                        (last + 1) * p->attention_chunk - shift);
    }
    return queries;
}

/* Returns the packed rows of these queries. */
static inline cpu_row_range_t cpu_seeing_rows(const flash_params_t *p, const flash_sequence_t *s,
                                              flash_range_t keys) {
    const cpu_row_range_t queries = cpu_seeing_queries(p, s, keys);
    const cpu_row_range_t rows = {queries.begin * p->group, queries.end * p->group};
    return rows;
}

#endif
