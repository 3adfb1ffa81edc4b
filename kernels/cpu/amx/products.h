/*
 * This file computes the products of an item: squares of scores, or P V for squares along d.
 */
#ifndef FLASH_KERNELS_CPU_AMX_PRODUCTS_H
#define FLASH_KERNELS_CPU_AMX_PRODUCTS_H

#include "cpu/amx/items.h"

ALWAYS_INLINE operands_t first_of_scores(const amx_scratch_t *t, amx_terms_t terms,
                                         const amx_item_t *item, int32_t square) {
    const operands_t first = {k_square(t, &item->block, square, 0),
                              t->q + item->strip * t->columns * terms.q * AMX_OPERANDS};
    return first;
}

ALWAYS_INLINE operands_t first_of_columns(const amx_scratch_t *t, const amx_item_t *item,
                                          int64_t column) {
    const operands_t first = {v_square(t, &item->block, item->first, column),
                              item_p(t, item, item->first)};
    return first;
}

/* Loads operands, unless the products before did. */
ALWAYS_INLINE void operands_need(operands_t needed, operands_t *loaded) {
    if (!operands_equal(needed, *loaded))
        operands_load(needed);
}

/* Computes S^T = K Q^T for some squares of the item. */
ALWAYS_INLINE void score_squares(const amx_scratch_t *t, amx_terms_t terms, const amx_item_t *item,
                                 const amx_scores_t *scores, product_chain_t *chain) {
    const int64_t k_step = terms.keys * AMX_OPERANDS, q_step = terms.q * AMX_OPERANDS;
    const int64_t columns = t->columns;
    if (scores->first == scores->last)
        return;
    const operands_t first = first_of_scores(t, terms, item, scores->first);
    operands_t at = first;
    operands_need(at, &chain->loaded);
    for (int32_t j = scores->first; j < scores->last; j++) {
        results_zero();
        for (int64_t c = 1; c <= columns; c++) {
            operands_t next = {at.left + k_step, at.right + q_step};
            if (c == columns) {
                next.right = first.right;
                if (j + 1 == scores->last)
                    next = chain->after;
            }
            score_multiply(at, next, terms, chain->work);
            at = next;
        }
        finish_vector_work(chain->work, terms.keys, (j + 1 - scores->first) * AMX_SQUARE / 2);
        results_store(scores_square(scores, j));
    }
    chain->loaded = chain->after;
}

/* Computes O^T += V^T P^T of the item, for squares begin ... end - 1 along d_v. */
ALWAYS_INLINE void accumulate_columns(const amx_scratch_t *t, int32_t terms, const amx_item_t *item,
                                      int64_t begin, int64_t end, product_chain_t *chain) {
    const int64_t step = terms * AMX_OPERANDS;
    if (begin == end)
        return;
    operands_t at = first_of_columns(t, item, begin);
    operands_need(at, &chain->loaded);
    for (int64_t c = begin; c < end; c++) {
        float *o = t->o + (item->strip * t->v_columns + c) * AMX_OPERANDS;
        if (item->starts)
            results_zero();
        else
            results_load(o);
        for (int32_t j = item->first + 1; j <= item->last; j++) {
            operands_t next = {at.left + step, at.right + step};
            if (j == item->last)
                next = c + 1 == end ? chain->after : first_of_columns(t, item, c + 1);
            value_multiply(at, next, terms, chain->work);
            at = next;
        }
        results_store(o);
    }
    chain->loaded = chain->after;
}

#endif
