/*
 * flash_kv_append() on the CPU shares the tokens among threads.
 */
#include "cpu/cpu_append.h"

#include "core/status.h"
#include "cpu/thread_pool.h"
#include "kernels/common/dtype.h"
#include "kernels/cpu/append_row.h"

#include <stdatomic.h>
#include <string.h>

typedef struct append_call {
    const append_params_t *params;
    atomic_int_least64_t next; /* of the new tokens and then the queries / TOKENS_AT_A_TIME */
} append_call_t;

enum { TOKENS_AT_A_TIME = 4 };

static const void *element_of(const void *data, int64_t index, int32_t dtype) {
    return (const char *)data + index * dtype_size(dtype);
}

/* Lengths and positions may change during the call. An angle outside of the tables is never read.
 */
static append_angles_t angles_of(const append_params_t *p, const append_token_t *token,
                                 int32_t stays_at_start) {
    const append_rotary_t *r = &p->rotary;
    const int64_t position = append_position(r, token, stays_at_start);
    const int64_t last = r->n_positions - 1;
    const int64_t row = position < 0 ? 0 : position > last ? last : position;
    return (append_angles_t){.cos = element_of(r->cos, row * r->stride_position, r->dtype),
                             .sin = element_of(r->sin, row * r->stride_position, r->dtype),
                             .dtype = r->dtype,
                             .n_pairs = r->n_pairs,
                             .is_interleaved = r->is_interleaved};
}

/* Writes the heads of a token, which begin at these offsets, into an entry of the cache. */
static void append_heads(const append_params_t *p, const append_part_t *part,
                         const append_token_t *token, int64_t entry, int64_t from, int64_t to) {
    const bool is_q = part == &p->parts[APPEND_Q];
    append_angles_t angles = {0};
    if (part->turns)
        angles = angles_of(p, token, is_q && p->rotary.q_at_start);
    for (int32_t head = 0; head < part->n_heads; head++) {
        const append_row_t row = {
            .from = element_of(part->from, from + head * part->from_stride.head, part->from_dtype),
            .to =
                (char *)part->to + (to + head * part->to_stride.head) * dtype_size(part->to_dtype),
            .from_dtype = part->from_dtype,
            .to_dtype = part->to_dtype,
            .d_head = part == &p->parts[APPEND_V] ? p->d_head_v : p->d_head,
            .inverse_scale = 1 / append_scale(part, token->batch_index, entry, head)};
        append_row(&row, &angles);
    }
}

/* Finds where a token goes, in K or V. What leads beyond the ids that the table was found to have
 * has changed since, and leads nowhere. */
static append_place_t place_of(const append_params_t *p, const append_part_t *part,
                               const append_token_t *token) {
    if (p->slots)
        return append_place(p, NULL, token);
    const append_range_t range = append_range(p, token->batch_index);
    if (part->table && range.first_id + range.n_ids > p->n_ids)
        return append_no_place();
    return append_place_in(p, part->table, &range, append_key(p, token));
}

static void append_new_token(const append_params_t *p, int64_t number) {
    const append_token_t token = append_token(&p->tokens_new, p->batch, number);
    for (int i = APPEND_K; token.exists && i <= APPEND_V; i++) {
        const append_part_t *part = &p->parts[i];
        if (part->n_heads == 0)
            continue;
        const append_place_t place = place_of(p, part, &token);
        if (place.entry >= 0)
            append_heads(p, part, &token, place.entry,
                         append_token_offset(&p->tokens_new, &part->from_stride, &token),
                         place.entry * part->to_stride.batch + place.at * part->to_stride.seq);
    }
}

static void turn_query(const append_params_t *p, int64_t number) {
    const append_token_t token = append_token(&p->tokens_q, p->batch, number);
    const append_part_t *part = &p->parts[APPEND_Q];
    if (token.exists)
        append_heads(p, part, &token, 0,
                     append_token_offset(&p->tokens_q, &part->from_stride, &token),
                     append_token_offset(&p->tokens_q, &part->to_stride, &token));
}

static void append_work(void *argument, int32_t index) {
    append_call_t *call = argument;
    const append_params_t *p = call->params;
    const int64_t n_new = p->tokens_new.total, n = n_new + p->tokens_q.total;
    (void)index;
    for (;;) {
        const int64_t first =
            TOKENS_AT_A_TIME * atomic_fetch_add_explicit(&call->next, 1, memory_order_relaxed);
        if (first >= n)
            return;
        for (int64_t i = first; i < first + TOKENS_AT_A_TIME && i < n; i++) {
            if (i < n_new)
                append_new_token(p, i);
            else
                turn_query(p, i - n_new);
        }
    }
}

static void write_lengths(const append_params_t *p) {
    for (int32_t b = 0; p->seqused_k_out != NULL && b < p->batch; b++) {
        const int32_t length = append_length_after(p, b);
        memcpy((char *)p->seqused_k_out + b * (int64_t)sizeof length, &length, sizeof length);
    }
}

/* Estimates the elements that a call writes. */
static double count_elements(const append_params_t *p) {
    const double of_k = (double)p->parts[APPEND_K].n_heads * p->d_head,
                 of_v = (double)p->parts[APPEND_V].n_heads * p->d_head_v,
                 of_q = (double)p->parts[APPEND_Q].n_heads * p->d_head;
    return (double)p->tokens_new.total * (of_k + of_v) + (double)p->tokens_q.total * of_q;
}

flash_status_t cpu_append(const append_params_t *params, const executor_t *executor) {
    enum { SHARE_MIN_ELEMENTS = 1 << 16 };
    const append_params_t *p = params;
    append_call_t call = {.params = p};
    parallel_t parallel;
    FLASH_TRY(parallel_acquire(executor, &parallel));
    parallel_for(&parallel, count_elements(p) < SHARE_MIN_ELEMENTS ? 1 : parallel.n_workers,
                 append_work, &call);
    parallel_release(&parallel);
    write_lengths(p);
    return FLASH_SUCCESS;
}
