/*
 * This file copies the lengths of a ragged batch.
 */
#include "cpu/lengths.h"

#include "core/int64.h"
#include "kernels/common/kv.h"

enum { ALIGNMENT = 64 }; /* bytes, of each copy */

static uint64_t round_up(uint64_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static uint64_t size_of(const int32_t *lengths, int64_t n) {
    return lengths ? round_up((uint64_t)n * sizeof *lengths) : 0;
}

/* Returns cu_seqlens_k where it says where keys lie. */
static const int32_t *ragged_keys(const flash_params_t *p) {
    return p->pages.page_size == 0 ? p->cu_seqlens_k : NULL;
}

/* Returns what says how many keys of each sequence are in use, which is copied to seqused_k; NULL:
 * all of them. */
static const int32_t *lengths_of_keys(const flash_params_t *p) {
    return p->seqused_k || p->pages.page_size == 0 ? p->seqused_k : p->cu_seqlens_k;
}

/* Rows are copied in 32 bits. */
static uint64_t size_of_rows(const flash_params_t *p) {
    const uint64_t bytes = (uint64_t)p->batch * sizeof(int32_t);
    return p->pages.rows || p->pages.rows64 ? round_up(bytes) : 0;
}

uint64_t cpu_lengths_size(const flash_params_t *p) {
    const int64_t batch = p->batch;
    return size_of(p->cu_seqlens_q, batch + 1) + size_of(ragged_keys(p), batch + 1) +
           size_of(p->seqused_q, batch) + size_of(lengths_of_keys(p), batch) +
           size_of(p->leftpad_k, batch) + size_of(p->pages.indptr, batch + 1) + size_of_rows(p);
}

static int32_t clamp(int64_t value, int64_t least, int64_t most) {
    return (int32_t)max64(least, min64(value, most));
}

static int32_t *take(char **memory, const int32_t *lengths, int64_t n) {
    int32_t *taken = (int32_t *)(void *)*memory;
    *memory += size_of(lengths, n);
    return taken;
}

/* ---- Ragged tensors ---- */

static const int32_t *copy_cu_seqlens(const int32_t *from, int32_t batch, int32_t seqlen,
                                      int64_t total, char **memory) {
    int32_t *to = take(memory, from, (int64_t)batch + 1);
    if (from == NULL)
        return NULL;
    to[0] = 0;
    for (int32_t b = 0; b < batch; b++)
        to[b + 1] = clamp(flash_load_length(from, (int64_t)b + 1), to[b],
                          min64(total, (int64_t)to[b] + seqlen));
    return to;
}

/* Returns the tokens of a sequence by lengths that are already copied. */
static int32_t tokens_of(const int32_t *cu_seqlens, int32_t seqlen, int32_t b) {
    return cu_seqlens ? cu_seqlens[b + 1] - cu_seqlens[b] : seqlen;
}

/* ---- Pages ---- */

static const int32_t *copy_indptr(const flash_params_t *p, int64_t most, char **memory) {
    const int32_t *from = p->pages.indptr;
    int32_t *to = take(memory, from, (int64_t)p->batch + 1);
    int32_t least = 0;
    for (int32_t b = 0; from != NULL && b <= p->batch; b++)
        least = to[b] = clamp(flash_load_length(from, b), least, most);
    return from ? to : NULL;
}

/* A number that is no row becomes some row. */
static const int32_t *copy_rows(const flash_params_t *p, int64_t n_rows, char **memory) {
    int32_t *to = (int32_t *)(void *)*memory;
    if (p->pages.rows == NULL && p->pages.rows64 == NULL)
        return NULL;
    *memory += size_of_rows(p);
    for (int32_t b = 0; b < p->batch; b++)
        to[b] = clamp(flash_page_row(&p->pages, b), 0, max64(n_rows - 1, 0));
    return to;
}

/* Returns how many keys a sequence has room for, by arrays that are already copied. */
static int64_t room_of(const flash_params_t *p, const cpu_totals_t *totals, int32_t b) {
    const int64_t tokens = tokens_of(p->cu_seqlens_k, p->seqlen_k, b);
    if (p->pages.page_size == 0)
        return tokens;
    if (p->pages.rows && totals->pages.rows == 0)
        return 0;
    return min64(tokens, flash_pages_room(&p->pages, b));
}

/* ---- Tokens that count ---- */

static const int32_t *copy_seqused_q(const flash_params_t *p, char **memory) {
    int32_t *to = take(memory, p->seqused_q, p->batch);
    for (int32_t b = 0; p->seqused_q && b < p->batch; b++)
        to[b] = clamp(flash_load_length(p->seqused_q, b), 0,
                      tokens_of(p->cu_seqlens_q, p->seqlen_q, b));
    return p->seqused_q ? to : NULL;
}

/* caller: the parameters with the caller's own arrays. */
static const int32_t *copy_seqused_k(const flash_params_t *p, const flash_params_t *caller,
                                     const cpu_totals_t *totals, char **memory) {
    const int32_t *from = lengths_of_keys(caller);
    int32_t *to = take(memory, from, p->batch);
    for (int32_t b = 0; from && b < p->batch; b++)
        to[b] = clamp(problem_keys_in_use(caller, b), 0, room_of(p, totals, b));
    return from ? to : NULL;
}

static const int32_t *copy_leftpad_k(const flash_params_t *p, char **memory) {
    int32_t *to = take(memory, p->leftpad_k, p->batch);
    for (int32_t b = 0; p->leftpad_k && b < p->batch; b++)
        to[b] = clamp(flash_load_length(p->leftpad_k, b), 0,
                      tokens_of(p->cu_seqlens_k, p->seqlen_k, b));
    return p->leftpad_k ? to : NULL;
}

void cpu_lengths_copy(flash_params_t *p, const cpu_totals_t *totals, void *memory) {
    const flash_params_t caller = *p;
    char *rest = memory;
    p->cu_seqlens_q = copy_cu_seqlens(p->cu_seqlens_q, p->batch, p->seqlen_q, totals->q, &rest);
    p->cu_seqlens_k = copy_cu_seqlens(ragged_keys(p), p->batch, p->seqlen_k, totals->k, &rest);
    p->pages.indptr = copy_indptr(p, totals->pages.ids, &rest);
    p->pages.rows = copy_rows(p, totals->pages.rows, &rest);
    p->pages.rows64 = NULL;
    p->seqused_q = copy_seqused_q(p, &rest);
    p->seqused_k = copy_seqused_k(p, &caller, totals, &rest);
    p->leftpad_k = copy_leftpad_k(p, &rest);
}

/* ---- The longest sequence ---- */

cpu_longest_t cpu_lengths_longest(const flash_params_t *p) {
    cpu_longest_t longest = {0, 0};
    for (int32_t b = 0; b < p->batch; b++) {
        const flash_sequence_t s = flash_sequence(p, b);
        longest.queries = max64(longest.queries, s.len_q);
        longest.keys = max64(longest.keys, s.len_k);
    }
    return longest;
}
