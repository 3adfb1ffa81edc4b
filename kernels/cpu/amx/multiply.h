/*
 * This file multiplies squares in the tile registers, with exponentials in between. A processor
 * looks ahead over a few hundred instructions only, so that both units are busy where the code of
 * both is finely mixed.
 */
#ifndef FLASH_KERNELS_CPU_AMX_MULTIPLY_H
#define FLASH_KERNELS_CPU_AMX_MULTIPLY_H

#include "cpu/amx/softmax.h"
#include "cpu/amx/tiles.h"

#include <stdbool.h>

/* These are the exponentials to compute between tile products. */
typedef struct vector_work {
    exponentials_t *exponentials;
    int64_t pairs; /* of keys, after each half of a product of squares */
} vector_work_t;

ALWAYS_INLINE void do_vector_work(const vector_work_t *work, int32_t terms) {
    for (int64_t i = 0; i < work->pairs && work->exponentials->done < work->exponentials->n; i++)
        exponentiate_next(work->exponentials, terms);
}

/* Computes what is left of the exponentials of the chunk's first `pairs` pairs of keys. */
ALWAYS_INLINE void finish_vector_work(const vector_work_t *work, int32_t terms, int64_t pairs) {
    while (work->exponentials && work->exponentials->done < min64(pairs, work->exponentials->n))
        exponentiate_next(work->exponentials, terms);
}

/* Operands of a product are squares of bf16, term after term. */
typedef struct operands {
    const uint16_t *left;
    const uint16_t *right;
} operands_t;

/* A chain of products passes on which operands the tile registers hold. */
typedef struct product_chain {
    operands_t loaded;
    operands_t after; /* of the product that follows; the chain loads them at its end */
    const vector_work_t *work;
} product_chain_t;

ALWAYS_INLINE bool operands_equal(operands_t a, operands_t b) {
    return a.left == b.left && a.right == b.right;
}

/* Loads operands; packed keys, the left ones, bypass the level 1 cache and do not flush it. */
ALWAYS_INLINE void operands_load(operands_t o) {
    _tile_stream_loadd(4, o.left, TILE_ROW_BYTES);
    _tile_loadd(6, o.right, TILE_ROW_BYTES);
    _tile_stream_loadd(5, o.left + AMX_OPERANDS / 2, TILE_ROW_BYTES);
    _tile_loadd(7, o.right + AMX_OPERANDS / 2, TILE_ROW_BYTES);
}

/* Adds the product of the loaded operands to the results. Loads the next operands, each as soon as
 * its register is free. */
ALWAYS_INLINE void square_multiply(operands_t next, int32_t terms, const vector_work_t *work) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_stream_loadd(4, next.left, TILE_ROW_BYTES);
    do_vector_work(work, terms);
    _tile_dpbf16ps(2, 5, 6);
    _tile_loadd(6, next.right, TILE_ROW_BYTES);
    _tile_dpbf16ps(3, 5, 7);
    _tile_stream_loadd(5, next.left + AMX_OPERANDS / 2, TILE_ROW_BYTES);
    _tile_loadd(7, next.right + AMX_OPERANDS / 2, TILE_ROW_BYTES);
    do_vector_work(work, terms);
}

/* Multiplies operands of K and Q, whose first terms are loaded. It computes the products of all
 * terms but that of K's second with Q's third. Without that of the two second terms, scores would
 * be up to 4e-6 of their parts off. */
ALWAYS_INLINE void score_multiply(operands_t o, operands_t next, amx_terms_t terms,
                                  const vector_work_t *work) {
    const operands_t third_right = {o.left, o.right + 2 * AMX_OPERANDS};
    const operands_t low_right = {o.left, o.right + AMX_OPERANDS};
    const operands_t low_both = {o.left + AMX_OPERANDS, o.right + AMX_OPERANDS};
    const operands_t low_left = {o.left + AMX_OPERANDS, o.right};
    if (terms.q == 3)
        square_multiply(third_right, terms.keys, work);
    if (terms.q >= 2)
        square_multiply(low_right, terms.keys, work);
    if (terms.keys == 2) {
        square_multiply(low_both, terms.keys, work);
        square_multiply(low_left, terms.keys, work);
    }
    square_multiply(next, terms.keys, work);
}

ALWAYS_INLINE int32_t score_products(amx_terms_t terms) {
    return terms.q + 2 * (terms.keys - 1);
}

/* Multiplies operands of V and P, of as many terms each, without the product of two low terms. */
ALWAYS_INLINE void value_multiply(operands_t o, operands_t next, int32_t terms,
                                  const vector_work_t *work) {
    if (terms == 2) {
        const operands_t low_right = {o.left, o.right + AMX_OPERANDS};
        const operands_t low_left = {o.left + AMX_OPERANDS, o.right};
        square_multiply(low_right, terms, work);
        square_multiply(low_left, terms, work);
    }
    square_multiply(next, terms, work);
}

ALWAYS_INLINE int32_t value_products(int32_t terms) {
    return terms == 2 ? 3 : 1;
}

#endif
