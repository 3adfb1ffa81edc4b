/*
 * This file clears gradients of tokens that are not in use, a sequence at a time.
 */
#include "cpu/unused_rows.h"

#include "cpu/items.h"
#include "kernels/common/dtype.h"

#include <string.h>

/* Tokens begin ... end - 1 of a tensor, counted from the start of its batch entry. */
typedef struct tokens {
    int64_t begin;
    int64_t end;
} tokens_t;

/* Returns the place of a sequence. */
static tokens_t place_of(const int32_t *cu_seqlens, int32_t seqlen, int32_t b) {
    return cu_seqlens ? (tokens_t){cu_seqlens[b], cu_seqlens[b + 1]} : (tokens_t){0, seqlen};
}

static void clear_tokens(const flash_gradient_t *gradient, int32_t b, tokens_t tokens,
                         int32_t n_heads, int64_t d_head) {
    const flash_strides_t *s = &gradient->stride;
    const int64_t size = dtype_size(gradient->dtype);
    for (int64_t token = tokens.begin; token < tokens.end; token++)
        for (int32_t head = 0; head < n_heads; head++)
            memset((char *)gradient->data + (b * s->batch + token * s->seq + head * s->head) * size,
                   0, (size_t)(d_head * size));
}

/* Clears the place but for the tokens in use. */
static void clear_around(const flash_gradient_t *gradient, int32_t b, tokens_t place, tokens_t used,
                         int32_t n_heads, int64_t d_head) {
    if (gradient->data == NULL || gradient->adds)
        return;
    clear_tokens(gradient, b, (tokens_t){place.begin, used.begin}, n_heads, d_head);
    clear_tokens(gradient, b, (tokens_t){used.end, place.end}, n_heads, d_head);
}

static void clear_sequence(void *context, int64_t item, int32_t worker) {
    const problem_t *problem = context;
    const flash_params_t *p = &problem->params;
    const flash_gradients_t *g = &problem->gradients;
    const int32_t b = (int32_t)item;
    const flash_sequence_t s = flash_sequence(p, b);
    const tokens_t q = place_of(p->cu_seqlens_q, p->seqlen_q, b);
    const tokens_t k = place_of(p->cu_seqlens_k, p->seqlen_k, b);
    const tokens_t used_q = {s.q_begin, s.q_begin + s.len_q};
    const tokens_t used_k = {s.len_k > 0 ? s.k_begin : k.end,
                             s.len_k > 0 ? s.k_begin + s.len_k : k.end};
    (void)worker;
    clear_around(&g->dq, b, q, used_q, p->n_heads, p->d_head);
    clear_around(&g->dk, b, k, used_k, p->n_heads_kv, p->d_head);
    clear_around(&g->dv, b, k, used_k, p->n_heads_kv, p->d_head_v);
}

void cpu_clear_unused_rows(const problem_t *problem, parallel_t *parallel) {
    const flash_params_t *p = &problem->params;
    const cpu_items_t items = {
        .n = p->batch, .work = clear_sequence, .context = (void *)(uintptr_t)problem};
    if (p->seqused_q || p->seqused_k || p->leftpad_k)
        cpu_items_run(parallel, parallel->n_workers, &items);
}
