/*
 * The main loop. The work is a sequence of items, each a strip of 32 rows against a block of keys:
 * for each block every strip that sees some of it. While the vector unit computes the exponentials
 * of one item, the tile unit computes the scores of the next one and adds P V of the one before.
 */
#ifndef FLASH_KERNELS_CPU_AMX_ATTEND_H
#define FLASH_KERNELS_CPU_AMX_ATTEND_H

#include "cpu/amx/multiply.h"
#include "cpu/amx/softmax.h"

/* ---- Items ---- */

/* Keys that some row of a strip sees, and those that all of them see; either may be empty. */
typedef struct strip_keys {
    flash_range_t any;
    flash_range_t common;
} strip_keys_t;

/* A run of a task's rows over consecutive blocks of packed keys. */
typedef struct amx_run {
    const amx_scratch_t *t;
    const strip_keys_t *strips;
    float scale; /* of the scores, to log2 */
    float softmax_scale;
    float softcap;
    void *packed;   /* its blocks */
    int32_t key;    /* of block 0 */
    int64_t block;  /* of the next item */
    int64_t step;   /* from block to block: 1 or -1 */
    int64_t n_left; /* blocks, that of the next item included */
    int64_t strip;  /* of the next item */
    int buffer;
    uint32_t started;  /* strips, a bit each */
    operands_t loaded; /* in the tile registers */
} amx_run_t;

/* Whether the strip sees keys of the present block; which, into *item. */
ALWAYS_INLINE bool set_item(amx_run_t *run, int64_t strip, amx_item_t *item) {
    const amx_scratch_t *t = run->t;
    const flash_range_t any = run->strips[strip].any;
    const int32_t key = run->key + (int32_t)run->block * t->block_keys;
    const int32_t begin = max32(any.begin - key, 0);
    const int32_t end = min32(any.end - key, t->block_keys);
    if (begin >= end)
        return false;
    const int32_t first = begin / AMX_SQUARE, last = (end + AMX_SQUARE - 1) / AMX_SQUARE;
    run->buffer ^= 1;
    *item = (amx_item_t){.block = amx_block_at(t, run->packed, run->block),
                         .strip = strip,
                         .key = key,
                         .first = first,
                         .last = last,
                         .n_chunks = (last - first + t->chunk - 1) / t->chunk,
                         .buffer = run->buffer,
                         .starts = !(run->started >> strip & 1)};
    run->started |= 1u << strip;
    return true;
}

/* The next item of the run; false: it has no more. */
static inline bool next_item(amx_run_t *run, amx_item_t *item) {
    for (; run->n_left > 0; run->n_left--, run->block += run->step) {
        while (run->strip < run->t->n_strips)
            if (set_item(run, run->strip++, item))
                return true;
        run->strip = 0;
    }
    return false;
}

/* ---- Products ---- */

/* The operands of the first product of some squares of scores. */
ALWAYS_INLINE operands_t first_of_scores(const amx_scratch_t *t, int32_t terms,
                                         const amx_item_t *item, int32_t square) {
    const operands_t first = {k_square(t, &item->block, square, 0),
                              t->q + item->strip * t->columns * terms * AMX_OPERANDS};
    return first;
}

/* The operands of the first product of some squares of O. */
ALWAYS_INLINE operands_t first_of_columns(const amx_scratch_t *t, const amx_item_t *item,
                                          int64_t column) {
    const operands_t first = {v_square(t, &item->block, item->first, column),
                              item_p(t, item, item->first)};
    return first;
}

/* Loads the operands of a first product, unless the products before it did. */
ALWAYS_INLINE void operands_need(operands_t needed, operands_t *loaded) {
    if (!operands_equal(needed, *loaded))
        operands_load(needed);
}

/* S^T = K Q^T of some squares of the item. *loaded: the operands in the tile registers, `after` in
 * the end. */
ALWAYS_INLINE void score_squares(const amx_scratch_t *t, int32_t terms, const amx_item_t *item,
                                 const amx_scores_t *scores, operands_t *loaded, operands_t after,
                                 const company_t *with) {
    const int64_t step = terms * AMX_OPERANDS, columns = t->columns;
    if (scores->first == scores->last)
        return;
    const operands_t first = first_of_scores(t, terms, item, scores->first);
    operands_t at = first;
    operands_need(at, loaded);
    for (int32_t j = scores->first; j < scores->last; j++) {
        results_zero();
        for (int64_t c = 1; c <= columns; c++) {
            operands_t next = {at.left + step, at.right + step};
            if (c == columns) {
                next.right = first.right;
                if (j + 1 == scores->last)
                    next = after;
            }
            terms_multiply(at, next, terms, true, with);
            at = next;
        }
        finish_company(with, terms, (j + 1 - scores->first) * AMX_SQUARE / 2);
        results_store(scores_square(scores, j));
    }
    *loaded = after;
}

/* O^T += V^T P^T of the item, squares begin ... end - 1 along d. */
ALWAYS_INLINE void accumulate_columns(const amx_scratch_t *t, int32_t terms, const amx_item_t *item,
                                      int64_t begin, int64_t end, operands_t *loaded,
                                      operands_t after, const company_t *with) {
    const int64_t step = terms * AMX_OPERANDS;
    if (begin == end)
        return;
    operands_t at = first_of_columns(t, item, begin);
    operands_need(at, loaded);
    for (int64_t c = begin; c < end; c++) {
        float *o = t->o + (item->strip * t->columns + c) * AMX_OPERANDS;
        if (item->starts)
            results_zero();
        else
            results_load(o);
        for (int32_t j = item->first + 1; j <= item->last; j++) {
            operands_t next = {at.left + step, at.right + step};
            if (j == item->last)
                next = c + 1 == end ? after : first_of_columns(t, item, c + 1);
            terms_multiply(at, next, terms, false, with);
            at = next;
        }
        results_store(o);
    }
    *loaded = after;
}

/* ---- The pipeline ---- */

/* Squares of scores number `index` of the item. */
ALWAYS_INLINE amx_scores_t chunk_of(const amx_scratch_t *t, const amx_item_t *item, int32_t index) {
    const int32_t first = item->first + index * t->chunk;
    const amx_scores_t chunk = {t->s, first, min32(first + t->chunk, item->last)};
    return chunk;
}

ALWAYS_INLINE void finish_scores(const amx_run_t *run, const amx_item_t *item,
                                 const amx_scores_t *scores) {
    const flash_range_t common = run->strips[item->strip].common;
    if (run->softcap != 0)
        cap_scores(scores->s, (int64_t)(scores->last - scores->first) * AMX_OPERANDS,
                   run->softmax_scale, run->softcap);
    if (common.begin > item->key + scores->first * AMX_SQUARE ||
        common.end < item->key + scores->last * AMX_SQUARE)
        hide_unseen(run->t, item, scores, common);
}

/* P of some row of the item is too large: a second look at the scores. Returns the new sums. */
NEVER_INLINE lanes_t raise_item(const amx_run_t *run, const amx_item_t *item, lanes_t sum) {
    const amx_scratch_t *t = run->t;
    const amx_scores_t scores = {t->s_block, item->first, item->last};
    operands_t loaded = {NULL, NULL};
    const company_t alone = {NULL, 0};
    score_squares(t, t->terms, item, &scores, &loaded,
                  first_of_scores(t, t->terms, item, item->first), &alone);
    finish_scores(run, item, &scores);
    return raise_rows(t, item, &scores, sum, run->scale);
}

/* What runs beside the exponentials of a chunk: P V of the item before, then the next scores, which
 * take the place of those that became P. */
typedef struct beside {
    const amx_item_t *previous; /* P V of this item, */
    int64_t begin;              /* squares begin ... end - 1 along d */
    int64_t end;
    const amx_item_t *next; /* scores of this item; */
    amx_scores_t scores;    /* none where first == last */
    operands_t after;       /* of the product that follows, or a guess */
} beside_t;

/* The products of a chunk, with rows of exponentials in between. */
ALWAYS_INLINE void multiply_beside(amx_run_t *run, int32_t terms, const beside_t *beside,
                                   const company_t *with) {
    const amx_scores_t *scores = &beside->scores;
    const operands_t scored = scores->first < scores->last
                                  ? first_of_scores(run->t, terms, beside->next, scores->first)
                                  : beside->after;
    tiles_see_stores();
    accumulate_columns(run->t, terms, beside->previous, beside->begin, beside->end, &run->loaded,
                       scored, with);
    score_squares(run->t, terms, beside->next, scores, &run->loaded, beside->after, with);
}

ALWAYS_INLINE void run_chunk(amx_run_t *run, int32_t terms, exponentials_t *e,
                             const beside_t *beside) {
    const amx_item_t *previous = beside->previous;
    const int64_t squares_s = (beside->scores.last - beside->scores.first) * run->t->columns;
    const int64_t squares_o = (previous->last - previous->first) * (beside->end - beside->begin);
    const int64_t products = terms == 2 ? 4 * squares_s + 3 * squares_o : squares_s + squares_o;
    const company_t with = {e, products ? (e->n + 2 * products - 1) / (2 * products) : 0};
    multiply_beside(run, terms, beside, &with);
    while (e->done < e->n)
        exponentiate_next(e, terms);
}

/* Items as they pass through the pipeline: `item` is at its exponentials, P V of `previous` beside
 * them, the first scores of `next` come before their end. */
typedef struct pipeline {
    amx_item_t previous;
    amx_item_t item;
    amx_item_t next;
    bool more; /* there is an item after `item` */
} pipeline_t;

/* P V of `previous` beside chunk `index` of the item: the first square along d. */
ALWAYS_INLINE int32_t first_column(const amx_scratch_t *t, const amx_item_t *previous,
                                   const amx_item_t *item, int32_t index) {
    return previous->last == 0 ? 0 : index * (int32_t)t->columns / item->n_chunks;
}

/* The operands of the first product beside chunk `index` of the item; those of its next scores are
 * loaded in vain where they are another item's. */
ALWAYS_INLINE operands_t first_beside(const amx_scratch_t *t, int32_t terms,
                                      const amx_item_t *previous, const amx_item_t *item,
                                      int32_t index) {
    const int32_t column = first_column(t, previous, item, index);
    if (column < first_column(t, previous, item, index + 1))
        return first_of_columns(t, previous, column);
    const int32_t square = item->first + (index + 1) * t->chunk;
    return first_of_scores(t, terms, item, min32(square, (int32_t)t->keys - 1));
}

ALWAYS_INLINE beside_t beside_chunk(const amx_scratch_t *t, int32_t terms, const pipeline_t *pipe,
                                    int32_t index) {
    const amx_item_t *previous = &pipe->previous, *item = &pipe->item;
    const bool is_last = index + 1 == item->n_chunks;
    const amx_item_t *next = is_last ? &pipe->next : item;
    const beside_t beside = {.previous = previous,
                             .begin = first_column(t, previous, item, index),
                             .end = first_column(t, previous, item, index + 1),
                             .next = next,
                             .scores = chunk_of(t, next, is_last ? 0 : index + 1),
                             .after = is_last ? first_beside(t, terms, item, next, 0)
                                              : first_beside(t, terms, previous, item, index + 1)};
    return beside;
}

ALWAYS_INLINE void run_item(amx_run_t *run, int32_t terms, pipeline_t *pipe) {
    const amx_scratch_t *t = run->t;
    const amx_item_t *item = &pipe->item;
    exponentials_t e = start_exponentials(t, item, run->scale);
    for (int32_t i = 0; i < item->n_chunks; i++) {
        const amx_scores_t chunk = chunk_of(t, item, i);
        const beside_t beside = beside_chunk(t, terms, pipe, i);
        finish_scores(run, item, &chunk);
        if (!all_rows_started(t, item->strip)) {
            start_strip(t, item->strip, &chunk, run->scale);
            e.origin = lanes_load(t->origin, item->strip);
        }
        set_chunk(t, item, &chunk, &e);
        run_chunk(run, terms, &e, &beside);
    }
    const bool raised = some_row_exceeds(e.sum);
    if (raised)
        e.sum = raise_item(run, item, e.sum);
    if (raised || item->n_chunks == 1) /* P changed after it may have been loaded */
        run->loaded = (operands_t){NULL, NULL};
    add_item_sum(t, item->strip, e.sum);
}

ALWAYS_INLINE void run_items(amx_run_t *run, int32_t terms) {
    const company_t alone = {NULL, 0};
    const amx_scratch_t *t = run->t;
    pipeline_t pipe = {.more = true};
    if (!next_item(run, &pipe.item))
        return;
    const amx_scores_t chunk = chunk_of(t, &pipe.item, 0);
    const operands_t first = first_of_scores(t, terms, &pipe.item, chunk.first);
    run->loaded = (operands_t){NULL, NULL};
    tiles_see_stores();
    score_squares(t, terms, &pipe.item, &chunk, &run->loaded, first, &alone);
    while (pipe.more) {
        pipe.more = next_item(run, &pipe.next);
        if (!pipe.more)
            pipe.next = (amx_item_t){.n_chunks = 1}; /* nothing to score beside P V */
        run_item(run, terms, &pipe);
        pipe.previous = pipe.item;
        pipe.item = pipe.next;
    }
    tiles_see_stores();
    accumulate_columns(t, terms, &pipe.previous, 0, t->columns, &run->loaded, first, &alone);
}

#endif
