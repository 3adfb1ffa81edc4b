/*
 * These functions compare the element types of a problem with those that rows serve together, and
 * name them.
 */
#ifndef FLASH_SELECT_TYPES_H
#define FLASH_SELECT_TYPES_H

#include "config/facts.h"
#include "core/problem.h"

#include <stdbool.h>

enum { TYPES_NAME_SIZE = 64, TYPES_PAIRS_SIZE = 256 };

/* Returns what a row does not serve, "dtype", "v.dtype", "q.dtype" or "o.dtype": the type of K,
 * that of V or Q beside it, or that of O beside these. NULL if it serves all types. */
const char *types_mismatch(const row_types_t *types, const problem_t *problem);

static inline bool types_pair_has(const type_pairs_t *pairs, int32_t q, int32_t o) {
    return (pairs->outputs[q] >> o & 1) != 0;
}

static inline bool types_have_v(const row_types_t *types, int32_t v) {
    return (types->v_types >> v & 1) != 0;
}

/* Says whether a row serves all types of the problem. Selection asks this of many rows. */
static inline bool types_serve(const row_types_t *types, const problem_t *problem) {
    return types->dtype == problem->dtype && types_have_v(types, problem->params.v_dtype) &&
           types_pair_has(&types->pairs, problem->params.q_dtype, problem->params.o_dtype);
}

/* Says whether such rows may serve the problem's types. */
bool types_of_rows_serve(const row_facts_t *facts, const problem_t *problem);

/* Writes the problem's types: "BF16", or "BF16 (Q BF16, O FP32)", with K and V first, or "BF16 (V
 * Q8_0, Q BF16, O FP32)". */
void types_name(const problem_t *problem, char text[TYPES_NAME_SIZE]);

void types_add(type_pairs_t *pairs, const type_pairs_t *more);

/* Writes all pairs, Q first, as "BF16 and BF16, BF16 and FP32"; "none" if there are none. */
void types_name_pairs(const type_pairs_t *pairs, char text[TYPES_PAIRS_SIZE]);

#endif
