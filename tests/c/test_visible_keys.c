/*
 * A mask's keys as kernels compute them are those of its definition, and so are the queries that
 * see a block of keys; a chunk that hides nothing is none.
 */
#include "arguments/forward.h"
#include "kernels/common/sequence.h"
#include "kernels/cpu/seeing_rows.h"
#include "support.h"

enum { MOST_TOKENS = 9 };

static bool sees(const flash_params_t *p, int32_t place, int32_t key) {
    const int32_t left = p->window_left, right = p->window_right, chunk = p->attention_chunk;
    if ((left >= 0 && key < place - left) || (right >= 0 && key > place + right))
        return false;
    return chunk == 0 || (place >= 0 && key / chunk == place / chunk);
}

static flash_range_t expected_keys(const flash_params_t *p, int32_t place, int32_t len_k) {
    flash_range_t keys = {0, 0};
    for (int32_t key = 0; key < len_k; key++)
        if (sees(p, place, key)) {
            keys.begin = keys.end == 0 ? key : keys.begin;
            keys.end = key + 1;
        }
    return keys;
}

static bool same_keys(flash_range_t a, flash_range_t b) {
    const bool none = a.begin == a.end && b.begin == b.end;
    return none || (a.begin == b.begin && a.end == b.end);
}

static void check_sequence(const flash_params_t *p, int32_t len_q, int32_t len_k) {
    const flash_sequence_t s = {.len_q = len_q, .len_k = len_k};
    flash_range_t before = {0, 0};
    for (int32_t i = 0; i < len_q; i++) {
        const flash_range_t keys = flash_visible_keys(p, &s, i);
        const flash_range_t expected =
            expected_keys(p, i + len_k - len_q + p->diagonal_offset, len_k);
        if (!same_keys(keys, expected))
            fail_msg("window %d, %d, chunk %d, offset %d, query %d of %d over %d keys: %d to %d, "
                     "not %d to %d",
                     p->window_left, p->window_right, p->attention_chunk, p->diagonal_offset, i,
                     len_q, len_k, keys.begin, keys.end, expected.begin, expected.end);
        assert_true(keys.begin >= before.begin && keys.end >= before.end && keys.end <= len_k);
        before = keys;
    }
}

/* Finds the queries that see one of the keys: none, or from the first to the last. */
static cpu_row_range_t expected_queries(const flash_params_t *p, const flash_sequence_t *s,
                                        flash_range_t keys) {
    cpu_row_range_t queries = {0, 0};
    for (int32_t i = 0; i < s->len_q; i++)
        for (int32_t key = keys.begin; key < keys.end; key++)
            if (sees(p, i + s->len_k - s->len_q + p->diagonal_offset, key)) {
                queries.begin = queries.end == 0 ? i : queries.begin;
                queries.end = i + 1;
            }
    return queries;
}

static void check_queries(const flash_params_t *p, int32_t len_q, int32_t len_k) {
    const flash_sequence_t s = {.len_q = len_q, .len_k = len_k};
    flash_range_t keys;
    for (keys.begin = 0; keys.begin < len_k; keys.begin++)
        for (keys.end = keys.begin + 1; keys.end <= len_k; keys.end += 3) {
            const cpu_row_range_t expected = expected_queries(p, &s, keys);
            const cpu_row_range_t queries = cpu_seeing_queries(p, &s, keys);
            const bool none = expected.end == 0 && queries.begin >= queries.end;
            if (!none && (queries.begin != expected.begin || queries.end != expected.end))
                fail_msg("window %d, %d, chunk %d, offset %d, %d queries, keys %d to %d of %d: "
                         "queries %d to %d, not %d to %d",
                         p->window_left, p->window_right, p->attention_chunk, p->diagonal_offset,
                         len_q, keys.begin, keys.end, len_k, (int)queries.begin, (int)queries.end,
                         (int)expected.begin, (int)expected.end);
        }
}

static void check_lengths(flash_params_t *p) {
    p->by_attention_chunk = flash_divider(p->attention_chunk > 0 ? p->attention_chunk : 1);
    for (int32_t len_q = 0; len_q <= MOST_TOKENS; len_q++)
        for (int32_t len_k = 0; len_k <= MOST_TOKENS; len_k++) {
            check_sequence(p, len_q, len_k);
            check_queries(p, len_q, len_k);
        }
}

static void check_masks(flash_params_t *p) {
    for (p->window_left = -1; p->window_left < 4; p->window_left++)
        for (p->window_right = -1; p->window_right < 4; p->window_right++)
            for (p->attention_chunk = 0; p->attention_chunk < MOST_TOKENS + 2; p->attention_chunk++)
                check_lengths(p);
}

TEST(keys_are_those_of_the_definition) {
    flash_params_t p = {.batch = 1};
    check_masks(&p);
}

TEST(keys_of_a_shifted_diagonal_are_those_of_the_definition) {
    for (int32_t offset = 1; offset <= 2 * MOST_TOKENS; offset += offset > 4 ? 5 : 1) {
        flash_params_t p = {.batch = 1, .diagonal_offset = offset};
        check_masks(&p);
        p.diagonal_offset = -offset;
        check_masks(&p);
    }
}

TEST(long_chunks_do_not_overflow) {
    const int32_t chunks[] = {1 << 30, (1 << 30) + 1, INT32_MAX - 1, INT32_MAX};
    const flash_sequence_t s = {.len_q = 1, .len_k = INT32_MAX};
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        const flash_params_t p = {.window_left = -1,
                                  .window_right = -1,
                                  .attention_chunk = chunks[i],
                                  .by_attention_chunk = flash_divider(chunks[i])};
        const flash_range_t keys = flash_visible_keys(&p, &s, 0);
        assert_int_equal(keys.begin, (INT32_MAX - 1) / chunks[i] * chunks[i]);
        assert_int_equal(keys.end, INT32_MAX);
    }
}

/* ---- Chunks that hide nothing ---- */

typedef struct call {
    uint32_t flags;
    int64_t chunk, seqlen_q, seqlen_k;
    bool has_lengths;
    int32_t features; /* that the call needs, but for varlen */
} call_t;

static int32_t features_of(const call_t *call) {
    static const int32_t used[1];
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT, checked;
    problem_t problem;
    args.dtype = FLASH_DTYPE_FP32;
    args.flags = call->flags;
    args.attention_chunk = call->chunk;
    args.batch = args.n_heads = args.n_heads_kv = args.d_head = 1;
    args.seqlen_q = call->seqlen_q;
    args.seqlen_k = call->seqlen_k;
    args.seqused_k = call->has_lengths ? used : NULL;
    assert_success(arguments_read(&args, &checked, &problem));
    return problem.features & ~FLASH_FEATURE_VARLEN;
}

/* A query before the first key sees no key with a chunk, however long, and all without. */
TEST(chunks_that_hide_nothing_are_dropped) {
    enum { CAUSAL = FLASH_FLAG_CAUSAL, INVARIANT = FLASH_FLAG_BATCH_INVARIANT };
    static const call_t calls[] = {
        {0, 0, 8, 8, false, 0},
        {0, 7, 8, 8, false, FLASH_FEATURE_WINDOW},
        {0, 8, 8, 8, false, 0},
        {0, INT64_MAX, 8, 8, false, 0},
        {0, 8, 9, 8, false, FLASH_FEATURE_WINDOW},
        {0, 8, 8, 8, true, FLASH_FEATURE_WINDOW},
        {0, 8, 1, 8, true, 0},
        {0, 7, 1, 8, true, FLASH_FEATURE_WINDOW},
        {CAUSAL, 7, 8, 8, false, FLASH_FEATURE_WINDOW},
        {CAUSAL, 8, 8, 8, false, FLASH_FEATURE_CAUSAL},
        {CAUSAL, 8, 9, 8, true, FLASH_FEATURE_CAUSAL},
        {CAUSAL | INVARIANT, INT64_MAX, 8, 8, false, FLASH_FEATURE_WINDOW},
        {INVARIANT, 8, 1, 8, false, FLASH_FEATURE_WINDOW},
    };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        if (features_of(&calls[i]) != calls[i].features)
            fail_msg("call %zu has features %d, not %d", i, features_of(&calls[i]),
                     calls[i].features);
}
