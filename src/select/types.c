/*
 * This file compares the element types of problems and rows, and names them.
 */
#include "select/types.h"

#include "config/config.h"
#include "core/text_writer.h"

#include <stdio.h>

_Static_assert(N_DTYPES < 32, "a type has no bit");

const char *types_mismatch(const row_types_t *types, const problem_t *problem) {
    const flash_params_t *p = &problem->params;
    if (types->dtype != problem->dtype)
        return "dtype";
    if (!types_have_v(types, p->v_dtype))
        return "v.dtype";
    if (types_pair_has(&types->pairs, p->q_dtype, p->o_dtype))
        return NULL;
    return types->pairs.outputs[p->q_dtype] == 0 ? "q.dtype" : "o.dtype";
}

bool types_of_rows_serve(const row_facts_t *facts, const problem_t *problem) {
    for (int32_t i = 0; i < facts->n_types; i++)
        if (types_serve(&facts->types[i], problem))
            return true;
    return false;
}

void types_name(const problem_t *problem, char text[TYPES_NAME_SIZE]) {
    const int32_t k = problem->dtype, v = problem->params.v_dtype;
    const int32_t q = problem->params.q_dtype, o = problem->params.o_dtype;
    if (v != k)
        snprintf(text, TYPES_NAME_SIZE, "%s (V %s, Q %s, O %s)", config_dtype_name(k),
                 config_dtype_name(v), config_dtype_name(q), config_dtype_name(o));
    else if (q != k || o != k)
        snprintf(text, TYPES_NAME_SIZE, "%s (Q %s, O %s)", config_dtype_name(k),
                 config_dtype_name(q), config_dtype_name(o));
    else
        snprintf(text, TYPES_NAME_SIZE, "%s", config_dtype_name(k));
}

/* ---- Pairs ---- */

void types_add(type_pairs_t *pairs, const type_pairs_t *more) {
    for (int32_t q = 1; q <= N_DTYPES; q++)
        pairs->outputs[q] |= more->outputs[q];
}

void types_name_pairs(const type_pairs_t *pairs, char text[TYPES_PAIRS_SIZE]) {
    text_writer_t w = {.separator = ""};
    for (int32_t q = 1; q <= N_DTYPES; q++)
        for (int32_t o = 1; o <= N_DTYPES; o++)
            if (types_pair_has(pairs, q, o)) {
                text_put(&w, "%s%s and %s", w.separator, config_dtype_name(q),
                         config_dtype_name(o));
                w.separator = ", ";
            }
    snprintf(text, TYPES_PAIRS_SIZE, "%.*s", TYPES_PAIRS_SIZE - 1, w.length > 0 ? w.text : "none");
}
