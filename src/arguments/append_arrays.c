/*
 * This file checks what the arrays of flash_kv_append() say, token by token, in host memory.
 */
#include "arguments/append_arrays.h"

#include "arguments/lengths.h"
#include "core/int64.h"
#include "core/status.h"

#include <inttypes.h>
#include <stdbool.h>

/* ---- Lengths ---- */

static flash_status_t check_tokens(const char *name, const append_tokens_t *tokens, int32_t batch) {
    int64_t total = 0;
    if (tokens->cu_seqlens == NULL)
        return FLASH_SUCCESS;
    FLASH_TRY(lengths_check_cu_seqlens(name, tokens->cu_seqlens, batch, INT32_MAX, &total));
    FLASH_REQUIRE(total <= tokens->total, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s[%" PRId32 "] is %" PRId64 ": the tensor has %" PRId64 " tokens", name, batch,
                  total, tokens->total);
    return FLASH_SUCCESS;
}

static flash_status_t check_lengths(const append_params_t *p) {
    FLASH_TRY(check_tokens("cu_seqlens_new", &p->tokens_new, p->batch));
    FLASH_TRY(check_tokens("cu_seqlens_q", &p->tokens_q, p->batch));
    for (int32_t b = 0; p->seqused_k != NULL && b < p->batch; b++) {
        const int32_t used = flash_load_length(p->seqused_k, b);
        FLASH_REQUIRE(used >= 0, FLASH_ERROR_INVALID_ARGUMENT,
                      "seqused_k[%" PRId32 "] is %" PRId32 ": negative", b, used);
    }
    return FLASH_SUCCESS;
}

/* ---- Places ---- */

static flash_status_t check_slot(const append_params_t *p, const append_token_t *token,
                                 int64_t slot) {
    const int64_t n_slots = (int64_t)p->pages.n_pages * p->pages.page_size;
    FLASH_REQUIRE(slot < n_slots, FLASH_ERROR_INVALID_ARGUMENT,
                  "slot_mapping[%" PRId64 "] is %" PRId64 ": the cache has %" PRId64 " slots",
                  token->number, slot, n_slots);
    return FLASH_SUCCESS;
}

static flash_status_t check_row64(const append_params_t *p, int32_t b) {
    const int64_t row = flash_load_int64(p->pages.rows64, b);
    FLASH_REQUIRE(row >= 0 && row <= INT32_MAX, FLASH_ERROR_INVALID_ARGUMENT,
                  "page_rows64[%" PRId32 "] is %" PRId64 ": not within 0 ... %" PRId32, b, row,
                  INT32_MAX);
    return FLASH_SUCCESS;
}

/* The ids of a sequence must not begin before the table. */
static flash_status_t check_first_id(const append_params_t *p, int32_t b,
                                     const append_range_t *range) {
    const bool has_rows = p->pages.table != NULL && p->pages.indptr == NULL;
    FLASH_REQUIRE(range->first_id >= 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s[%" PRId32 "] is %" PRId64 ": negative",
                  p->pages.indptr ? "page_indptr" : "page_rows", b,
                  has_rows ? range->first_id / range->n_ids : range->first_id);
    return FLASH_SUCCESS;
}

/* A token that becomes this key of its sequence. */
typedef struct new_key {
    const append_token_t *token;
    append_range_t range;
    int64_t key;
} new_key_t;

/* Returns the name of the array that says in which page, or slot, a key is. */
static const char *name_of_places(const append_params_t *p, const int32_t *table) {
    return table ? "page_table" : p->pages.rows64 ? "page_rows64" : "page_rows";
}

static flash_status_t check_page(const append_params_t *p, const new_key_t *new, const char *name,
                                 const int32_t *table) {
    FLASH_REQUIRE(append_place_in(p, table, &new->range, new->key).entry >= 0,
                  FLASH_ERROR_INVALID_ARGUMENT,
                  "%s: new token %" PRId64 " of sequence %" PRId32 ", its key %" PRId64
                  ", has no page or slot within 0 ... %" PRId32,
                  name, new->token->i, new->token->batch_index, new->key, p->pages.n_pages - 1);
    return FLASH_SUCCESS;
}

static flash_status_t check_place(const append_params_t *p, const new_key_t *new) {
    const int32_t b = new->token->batch_index;
    const append_part_t *k = &p->parts[APPEND_K], *v = &p->parts[APPEND_V];
    if (p->pages.rows64)
        FLASH_TRY(check_row64(p, b));
    FLASH_TRY(check_first_id(p, b, &new->range));
    FLASH_REQUIRE(new->key < new->range.room, FLASH_ERROR_INVALID_ARGUMENT,
                  "new token %" PRId64 " of sequence %" PRId32 " would be its key %" PRId64
                  ": the cache holds %" PRId64 " keys of it",
                  new->token->i, b, new->key, new->range.room);
    FLASH_TRY(check_page(p, new, name_of_places(p, k->table), k->table));
    return v->n_heads == 0 || v->table == k->table ? FLASH_SUCCESS
                                                   : check_page(p, new, "v_page_table", v->table);
}

/* Checks the place that lengths and pages give a token. *n_ids: the ids of the table up to the last
 * of all sequences so far. */
static flash_status_t check_key(const append_params_t *p, const append_token_t *token,
                                int64_t *n_ids) {
    const new_key_t new = {token, append_range(p, token->batch_index), append_key(p, token)};
    FLASH_TRY(check_place(p, &new));
    *n_ids = max64(*n_ids, new.range.first_id + new.range.n_ids);
    return FLASH_SUCCESS;
}

/* ---- Positions ---- */

static flash_status_t check_position(const append_params_t *p, const append_token_t *token,
                                     const char *tokens, int stays_at_start) {
    const int64_t position = append_position(&p->rotary, token, stays_at_start);
    FLASH_REQUIRE(position >= 0 && position < p->rotary.n_positions, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s %" PRId64 " of sequence %" PRId32 " is at position %" PRId64
                  ": the rotary tables have 0 ... %" PRId32,
                  tokens, token->i, token->batch_index, position, p->rotary.n_positions - 1);
    return FLASH_SUCCESS;
}

/* A token in a negative slot is padding, which has no place and is not written. */
static flash_status_t check_new_token(const append_params_t *p, const append_token_t *token,
                                      int64_t *n_ids) {
    const int64_t slot = p->slots ? flash_load_int64(p->slots, token->number) : 0;
    if (!token->exists || slot < 0)
        return FLASH_SUCCESS;
    FLASH_TRY(p->slots ? check_slot(p, token, slot) : check_key(p, token, n_ids));
    return p->parts[APPEND_K].turns ? check_position(p, token, "new token", 0) : FLASH_SUCCESS;
}

flash_status_t arguments_check_append_arrays(append_params_t *params) {
    const append_params_t *p = params;
    int64_t n_ids = 0;
    FLASH_TRY(check_lengths(p));
    for (int64_t i = 0; i < p->tokens_new.total; i++) {
        const append_token_t token = append_token(&p->tokens_new, p->batch, i);
        FLASH_TRY(check_new_token(p, &token, &n_ids));
    }
    for (int64_t i = 0; i < p->tokens_q.total; i++) {
        const append_token_t token = append_token(&p->tokens_q, p->batch, i);
        if (token.exists)
            FLASH_TRY(check_position(p, &token, "query", p->rotary.q_at_start));
    }
    params->n_ids = n_ids;
    return FLASH_SUCCESS;
}
