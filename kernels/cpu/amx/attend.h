/*
 * This is the main loop of AMX tasks. While the vector unit computes the exponentials of one item,
 * the tile unit adds P V of the item before it and computes scores of the next one.
 *
 *   vector unit    exponentials of item i
 *   tile unit      P V of item i - 1, then the first scores of item i + 1
 */
#ifndef FLASH_KERNELS_CPU_AMX_ATTEND_H
#define FLASH_KERNELS_CPU_AMX_ATTEND_H

#include "cpu/amx/products.h"

ALWAYS_INLINE amx_scores_t chunk_of(const amx_scratch_t *t, const amx_item_t *item, int32_t index) {
    const int32_t first = item->first + index * t->chunk;
    const amx_scores_t chunk = {t->s, first, min32(first + t->chunk, item->last)};
    return chunk;
}

ALWAYS_INLINE void finish_scores(const amx_run_t *run, const amx_item_t *item,
                                 const amx_scores_t *scores) {
    const flash_range_t common = run->strips[item->strip].common;
    if (run->rule.rewrites)
        rewrite_scores(scores->s, (int64_t)(scores->last - scores->first) * AMX_OPERANDS,
                       &run->rule);
    if (run->rule.has_bias)
        add_bias_to_squares(run->t, run->bias, item, scores);
    if (common.begin > item->key + scores->first * AMX_SQUARE ||
        common.end < item->key + scores->last * AMX_SQUARE)
        hide_unseen(run->t, item, scores, common);
    if (item->holes)
        hide_holes_of_squares(item->holes, scores);
}

/* Computes scores and P of an item again: some P was too large. Returns the new sums. */
NEVER_INLINE lanes_t raise_item(const amx_run_t *run, const amx_item_t *item, lanes_t sum) {
    const amx_scratch_t *t = run->t;
    const amx_scores_t scores = {t->s_block, item->first, item->last};
    const vector_work_t no_work = {NULL, 0};
    product_chain_t chain = {.after = first_of_scores(t, t->terms, item, item->first),
                             .work = &no_work};
    score_squares(t, t->terms, item, &scores, &chain);
    finish_scores(run, item, &scores);
    return raise_rows(t, item, &scores, sum, run->rule.to_log2);
}

/* These are the tile products during the exponentials of a chunk: P V of the item before, then the
 * next scores, which are stored over those that became P. */
typedef struct tile_work {
    const amx_item_t *previous; /* its P V is added, */
    int64_t begin;              /* squares begin ... end - 1 along d_v */
    int64_t end;
    const amx_item_t *next; /* its scores are computed; */
    amx_scores_t scores;    /* none where first == last */
    operands_t after;       /* of the product that follows, as far as is known */
} tile_work_t;

ALWAYS_INLINE void run_tile_work(amx_run_t *run, amx_terms_t terms, const tile_work_t *tile_work,
                                 const vector_work_t *work) {
    const amx_scores_t *scores = &tile_work->scores;
    const operands_t scored = scores->first < scores->last
                                  ? first_of_scores(run->t, terms, tile_work->next, scores->first)
                                  : tile_work->after;
    product_chain_t chain = {run->loaded, scored, work};
    tiles_see_stores();
    accumulate_columns(run->t, terms.keys, tile_work->previous, tile_work->begin, tile_work->end,
                       &chain);
    chain.after = tile_work->after;
    score_squares(run->t, terms, tile_work->next, scores, &chain);
    run->loaded = chain.loaded;
}

ALWAYS_INLINE void run_chunk(amx_run_t *run, amx_terms_t terms, exponentials_t *e,
                             const tile_work_t *tile_work) {
    const amx_item_t *previous = tile_work->previous;
    const int64_t squares_s = (tile_work->scores.last - tile_work->scores.first) * run->t->columns;
    const int64_t squares_o =
        (previous->last - previous->first) * (tile_work->end - tile_work->begin);
    const int64_t products =
        score_products(terms) * squares_s + value_products(terms.keys) * squares_o;
    const vector_work_t work = {e, products ? (e->n + 2 * products - 1) / (2 * products) : 0};
    run_tile_work(run, terms, tile_work, &work);
    while (e->done < e->n)
        exponentiate_next(e, terms.keys);
}

/* These items are in the pipeline: exponentials of `item` are computed during P V of `previous`
 * and, at the end, the first scores of `next`. */
typedef struct pipeline {
    amx_item_t previous;
    amx_item_t item;
    amx_item_t next;
    bool more; /* there is an item after `item` */
} pipeline_t;

/* Returns the first square along d_v of the P V during chunk `index` of the item. */
ALWAYS_INLINE int32_t first_column(const amx_scratch_t *t, const amx_item_t *previous,
                                   const amx_item_t *item, int32_t index) {
    return previous->last == 0 ? 0 : index * (int32_t)t->v_columns / item->n_chunks;
}

/* Returns the operands of the first product during chunk `index` of the item. Where its next scores
 * are another item's, these are the wrong ones, and are loaded for nothing. */
ALWAYS_INLINE operands_t first_of_tile_work(const amx_scratch_t *t, amx_terms_t terms,
                                            const amx_item_t *previous, const amx_item_t *item,
                                            int32_t index) {
    const int32_t column = first_column(t, previous, item, index);
    if (column < first_column(t, previous, item, index + 1))
        return first_of_columns(t, previous, column);
    const int32_t square = item->first + (index + 1) * t->chunk;
    return first_of_scores(t, terms, item, min32(square, (int32_t)t->keys - 1));
}

ALWAYS_INLINE tile_work_t tile_work_of_chunk(const amx_scratch_t *t, amx_terms_t terms,
                                             const pipeline_t *pipe, int32_t index) {
    const amx_item_t *previous = &pipe->previous, *item = &pipe->item;
    const bool is_last = index + 1 == item->n_chunks;
    const amx_item_t *next = is_last ? &pipe->next : item;
    const tile_work_t tile_work = {
        .previous = previous,
        .begin = first_column(t, previous, item, index),
        .end = first_column(t, previous, item, index + 1),
        .next = next,
        .scores = chunk_of(t, next, is_last ? 0 : index + 1),
        .after = is_last ? first_of_tile_work(t, terms, item, next, 0)
                         : first_of_tile_work(t, terms, previous, item, index + 1)};
    return tile_work;
}

ALWAYS_INLINE void run_item(amx_run_t *run, amx_terms_t terms, pipeline_t *pipe) {
    const amx_scratch_t *t = run->t;
    const amx_item_t *item = &pipe->item;
    exponentials_t e = start_exponentials(t, item, run->rule.to_log2);
    for (int32_t i = 0; i < item->n_chunks; i++) {
        const amx_scores_t chunk = chunk_of(t, item, i);
        const tile_work_t tile_work = tile_work_of_chunk(t, terms, pipe, i);
        finish_scores(run, item, &chunk);
        if (!all_rows_started(t, item->strip)) {
            start_strip(t, item->strip, &chunk, run->rule.to_log2);
            e.reference = lanes_load(t->reference, item->strip);
        }
        set_chunk(t, item, &chunk, &e);
        run_chunk(run, terms, &e, &tile_work);
    }
    const bool raised = some_row_exceeds(e.sum);
    if (raised)
        e.sum = raise_item(run, item, e.sum);
    if (raised || item->n_chunks == 1) /* P changed after it may have been loaded */
        run->loaded = (operands_t){NULL, NULL};
    add_item_sum(t, item->strip, e.sum);
}

ALWAYS_INLINE void run_items(amx_run_t *run, amx_terms_t terms) {
    const vector_work_t no_work = {NULL, 0};
    const amx_scratch_t *t = run->t;
    pipeline_t pipe = {.more = true};
    if (!next_item(run, &pipe.item))
        return;
    const amx_scores_t chunk = chunk_of(t, &pipe.item, 0);
    const operands_t first = first_of_scores(t, terms, &pipe.item, chunk.first);
    product_chain_t chain = {.after = first, .work = &no_work};
    tiles_see_stores();
    score_squares(t, terms, &pipe.item, &chunk, &chain);
    run->loaded = chain.loaded;
    while (pipe.more) {
        pipe.more = next_item(run, &pipe.next);
        if (!pipe.more)
            pipe.next = (amx_item_t){.n_chunks = 1}; /* nothing to score during P V */
        run_item(run, terms, &pipe);
        pipe.previous = pipe.item;
        pipe.item = pipe.next;
    }
    chain.loaded = run->loaded;
    tiles_see_stores();
    accumulate_columns(t, terms.keys, &pipe.previous, 0, t->v_columns, &chain);
}

#endif
