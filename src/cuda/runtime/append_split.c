#include "cuda/runtime/append_split.h"

#include <stddef.h>

bool append_is_split(const append_params_t *params) {
    return params->parts[APPEND_V].n_heads > 0 && params->d_head_v != params->d_head;
}

/* The part has what finds pages: of pages.table it matters alone whether there is one. */
append_params_t append_v_alone(const append_params_t *params) {
    append_params_t of_v = *params;
    of_v.parts[APPEND_K] = params->parts[APPEND_V];
    of_v.parts[APPEND_V] = of_v.parts[APPEND_Q] = (append_part_t){.from = NULL};
    of_v.tokens_q = (append_tokens_t){.total = 0};
    of_v.rotary = (append_rotary_t){.n_pairs = 0};
    of_v.seqused_k_out = NULL;
    of_v.d_head = params->d_head_v;
    return of_v;
}

append_params_t append_without_v(const append_params_t *params) {
    append_params_t rest = *params;
    rest.parts[APPEND_V] = (append_part_t){.from = NULL};
    return rest;
}
