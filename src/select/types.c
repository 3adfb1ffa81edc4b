/*
 * This file compares the element types of problems and families, and names them.
 */
#include "select/types.h"

#include "config/config.h"
#include "core/text_writer.h"
#include "kernels/common/dtype.h"

#include <stdio.h>

_Static_assert((N_DTYPES + 1) * (N_DTYPES + 1) <= 64, "a pair of types has no bit");

const char *types_mismatch(const family_facts_t *facts, const problem_t *problem) {
    const flash_params_t *p = &problem->params;
    const char *mismatch = "q.dtype";
    for (int32_t i = 0; i < facts->n_types; i++) {
        const family_types_t *types = &facts->types[i];
        if (types->kv != problem->dtype || types->q != p->q_dtype)
            continue;
        if (types->o == p->o_dtype)
            return NULL;
        mismatch = "o.dtype";
    }
    return mismatch;
}

void types_name(const problem_t *problem, char text[TYPES_NAME_SIZE]) {
    const int32_t kv = problem->dtype, q = problem->params.q_dtype, o = problem->params.o_dtype;
    if (q == kv && o == kv)
        snprintf(text, TYPES_NAME_SIZE, "%s", config_dtype_name(kv));
    else
        snprintf(text, TYPES_NAME_SIZE, "%s (Q %s, O %s)", config_dtype_name(kv),
                 config_dtype_name(q), config_dtype_name(o));
}

/* ---- Pairs ---- */

static uint64_t pair_bit(int32_t q, int32_t o) {
    return (uint64_t)1 << (q * (N_DTYPES + 1) + o);
}

void types_add(types_pairs_t *pairs, const family_facts_t *facts, int32_t kv) {
    for (int32_t i = 0; i < facts->n_types; i++)
        if (facts->types[i].kv == kv)
            pairs->bits |= pair_bit(facts->types[i].q, facts->types[i].o);
}

void types_name_pairs(types_pairs_t pairs, char text[TYPES_PAIRS_SIZE]) {
    text_writer_t w = {.separator = ""};
    for (int32_t q = 1; q <= N_DTYPES; q++)
        for (int32_t o = 1; o <= N_DTYPES; o++)
            if (pairs.bits & pair_bit(q, o)) {
                text_put(&w, "%s%s and %s", w.separator, config_dtype_name(q),
                         config_dtype_name(o));
                w.separator = ", ";
            }
    snprintf(text, TYPES_PAIRS_SIZE, "%.*s", TYPES_PAIRS_SIZE - 1, w.length > 0 ? w.text : "none");
}
