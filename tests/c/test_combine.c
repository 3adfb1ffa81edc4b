/*
 * Merging partial results is compared with attention over all keys, and refusals are tested.
 */
#include "support.h"

#include <math.h>

enum { PARTS = 3 };

static const sizes_t SIZES = {
    .batch = 2, .seqlen_q = 3, .seqlen_k = 10, .n_heads = 4, .n_heads_kv = 2, .d_head = 8};

/* A valid call merges the partial results of three disjoint ranges of keys, one of them empty. */
typedef struct partials {
    test_problem_t whole;
    flash_combine_args_t args;
    float *o;
    float *lse;
} partials_t;

static void compute_part(const test_problem_t *whole, int64_t begin, int64_t end, float *o,
                         float *lse) {
    flash_forward_args_t args = whole->args;
    args.k.data = whole->k + begin * args.k.stride_seq;
    args.v.data = whole->v + begin * args.v.stride_seq;
    args.seqlen_k = end - begin;
    args.o.data = o;
    args.lse = lse;
    assert_success(flash_forward(&args, NULL, NULL));
}

static void partials_create(partials_t *p) {
    static const int64_t bounds[PARTS + 1] = {0, 4, 4, 10};
    problem_create(&p->whole, SIZES, 21);
    p->o = malloc(PARTS * p->whole.o_count * sizeof(float));
    p->lse = malloc(PARTS * p->whole.lse_count * sizeof(float));
    assert_true(p->o != NULL && p->lse != NULL);
    for (size_t i = 0; i < PARTS; i++)
        compute_part(&p->whole, bounds[i], bounds[i + 1], p->o + i * p->whole.o_count,
                     p->lse + i * p->whole.lse_count);
    problem_poison(&p->whole);

    flash_combine_args_t args = FLASH_COMBINE_ARGS_INIT;
    args.dtype = FLASH_DTYPE_FP32;
    args.o_partial = p->whole.args.o;
    args.o_partial.data = p->o;
    args.stride_partial = (int64_t)p->whole.o_count;
    args.lse_partial = p->lse;
    args.o = p->whole.args.o;
    args.lse = p->whole.lse;
    args.n_partials = PARTS;
    args.batch = SIZES.batch;
    args.seqlen_q = SIZES.seqlen_q;
    args.n_heads = SIZES.n_heads;
    args.d_head = SIZES.d_head;
    p->args = args;
}

static void partials_destroy(partials_t *p) {
    free(p->o);
    free(p->lse);
    problem_destroy(&p->whole);
}

TEST(parts_make_the_whole) {
    partials_t p;
    partials_create(&p);
    assert_success(flash_combine(&p.args, NULL));
    problem_check_result(&p.whole);
    partials_destroy(&p);
}

/* The parts were computed without them. */
TEST(sinks_join_once) {
    static const float sinks[] = {0.5f, -1, 2, 0};
    partials_t p;
    partials_create(&p);
    p.args.sinks = p.whole.args.sinks = sinks;
    assert_success(flash_combine(&p.args, NULL));
    problem_check_result(&p.whole);
    partials_destroy(&p);
}

TEST(a_part_without_weight_is_not_looked_at) {
    partials_t p;
    partials_create(&p);
    for (size_t i = 0; i < p.whole.o_count; i++) /* the empty range */
        p.o[p.whole.o_count + i] = NAN;
    assert_success(flash_combine(&p.args, NULL));
    problem_check_result(&p.whole);
    partials_destroy(&p);
}

TEST(no_parts_see_no_key) {
    partials_t p;
    partials_create(&p);
    p.args.n_partials = 0;
    p.args.o_partial.data = NULL;
    p.args.o_partial.stride_seq = INT64_MAX;
    p.args.lse_partial = NULL;
    assert_success(flash_combine(&p.args, NULL));
    for (size_t i = 0; i < p.whole.o_count; i++)
        assert_true(p.whole.o[i] == 0.0f);
    for (size_t i = 0; i < p.whole.lse_count; i++)
        assert_true(isinf(p.whole.lse[i]) && p.whole.lse[i] < 0);
    problem_check_canaries(&p.whole);
    partials_destroy(&p);
}

/* With one partial result the stride between them does not matter. */
TEST(one_part_is_the_whole) {
    partials_t p;
    partials_create(&p);
    compute_part(&p.whole, 0, SIZES.seqlen_k, p.o, p.lse);
    problem_poison(&p.whole);
    p.args.n_partials = 1;
    p.args.stride_partial = INT64_MAX;
    assert_success(flash_combine(&p.args, NULL));
    problem_check_result(&p.whole);
    partials_destroy(&p);
}

/* ---- Layouts of partial results and results ---- */

/* The merged result replaces each partial result in turn. */
TEST(a_partial_result_is_merged_in_place) {
    for (int64_t i = 0; i < PARTS; i++) {
        partials_t p;
        partials_create(&p);
        p.args.o.data = p.o + i * (int64_t)p.whole.o_count;
        p.args.lse = p.lse + i * (int64_t)p.whole.lse_count;
        assert_success(flash_combine(&p.args, NULL));
        memcpy(p.whole.o, p.args.o.data, p.whole.o_count * sizeof(float));
        memcpy(p.whole.lse, p.args.lse, p.whole.lse_count * sizeof(float));
        problem_check_result(&p.whole);
        partials_destroy(&p);
    }
}

TEST(partial_results_may_lie_anywhere) {
    partials_t p;
    float *o[PARTS], *lse[PARTS];
    partials_create(&p);
    for (size_t i = 0; i < PARTS; i++) {
        const size_t from = PARTS - 1 - i; /* the order does not matter much */
        o[i] = malloc(p.whole.o_count * sizeof(float));
        lse[i] = malloc(p.whole.lse_count * sizeof(float));
        assert_true(o[i] != NULL && lse[i] != NULL);
        memcpy(o[i], p.o + from * p.whole.o_count, p.whole.o_count * sizeof(float));
        memcpy(lse[i], p.lse + from * p.whole.lse_count, p.whole.lse_count * sizeof(float));
    }
    p.args.o_partial.data = NULL;
    p.args.lse_partial = NULL;
    p.args.o_partials = (const void *const *)o;
    p.args.lse_partials = (const float *const *)lse;
    assert_success(flash_combine(&p.args, NULL));
    problem_check_result(&p.whole);
    problem_check_canaries(&p.whole);
    for (size_t i = 0; i < PARTS; i++) {
        free(o[i]);
        free(lse[i]);
    }
    partials_destroy(&p);
}

/* LSE has tokens before heads: [n_partials, batch, seqlen_q, n_heads], and the merged one alike. */
TEST(lse_of_any_strides_is_merged) {
    const int64_t seq = SIZES.n_heads, batch = SIZES.seqlen_q * SIZES.n_heads;
    const int64_t part = SIZES.batch * batch;
    float turned[PARTS * 2 * 3 * 4], merged[2 * 3 * 4];
    partials_t p;
    partials_create(&p);
    for (int64_t i = 0; i < PARTS; i++)
        for (int64_t b = 0; b < SIZES.batch; b++)
            for (int64_t h = 0; h < SIZES.n_heads; h++)
                for (int64_t s = 0; s < SIZES.seqlen_q; s++)
                    turned[i * part + b * batch + s * seq + h] =
                        p.lse[i * part + (b * SIZES.n_heads + h) * SIZES.seqlen_q + s];
    p.args.lse_partial = turned;
    p.args.lse_partial_stride = part;
    p.args.lse_partial_stride_batch = p.args.lse_stride_batch = batch;
    p.args.lse_partial_stride_seq = p.args.lse_stride_seq = seq;
    p.args.lse_partial_stride_head = p.args.lse_stride_head = 1;
    p.args.lse = merged;
    assert_success(flash_combine(&p.args, NULL));
    for (int64_t b = 0; b < SIZES.batch; b++)
        for (int64_t h = 0; h < SIZES.n_heads; h++)
            for (int64_t s = 0; s < SIZES.seqlen_q; s++)
                p.whole.lse[(b * SIZES.n_heads + h) * SIZES.seqlen_q + s] =
                    merged[b * batch + s * seq + h];
    problem_check_result(&p.whole);
    partials_destroy(&p);
}

/* ---- Refusals ---- */

typedef struct refusal {
    void (*spoil)(flash_combine_args_t *args);
    flash_status_t status;
    const char *words;
} refusal_t;

#define INVALID FLASH_ERROR_INVALID_ARGUMENT

static const float RESULT[2 * 3 * 4 * 8];
static const void *const with_null[PARTS] = {RESULT, NULL, RESULT};

#define REFUSALS(X)                                                                                \
    X(device_negative, args->device = -1, INVALID, "device is 0xffffffff")                         \
    X(device_cuda, args->device = ABSENT_CUDA_DEVICE, ABSENT_DEVICE_STATUS, "CUDA device 1000")    \
    X(o_partial_dtype, args->o_partial.dtype = 9, INVALID, "o_partial.dtype is 9")                 \
    X(flags, args->flags = FLASH_FLAG_CAUSAL, INVALID, "flags is 0x1")                             \
    X(n_heads_zero, args->n_heads = 0, INVALID, "n_heads is 0")                                    \
    X(stride_forgotten, args->o_partial.stride_seq = 0, INVALID, "o_partial.stride_seq is 0")      \
    X(lse_in_o, args->lse = args->o.data, INVALID, "lse overlaps o")                               \
    X(lse_shifted, args->lse = (float *)(uintptr_t)args->lse_partial + 1, INVALID,                 \
      "lse overlaps lse_partial: lse begins at ")                                                  \
    X(lse_in_o_partial, args->lse = (float *)args->o_partial.data + 100, INVALID,                  \
      "lse overlaps o_partial: lse begins at ")                                                    \
    X(o_over_lse_partial, args->lse_partial = (const float *)args->o.data + 7, INVALID,            \
      "o overlaps lse_partial: o begins at ")                                                      \
    X(dtype, args->dtype = 9, INVALID, "dtype is 9")                                               \
    X(n_partials, args->n_partials = -1, INVALID, "n_partials is -1")                              \
    X(batch, args->batch = -1, INVALID, "batch is -1")                                             \
    X(seqlen_q, args->seqlen_q = -1, INVALID, "seqlen_q is -1")                                    \
    X(n_heads, args->n_heads = -1, INVALID, "n_heads is -1")                                       \
    X(d_head_zero, args->d_head = 0, INVALID, "d_head is 0")                                       \
    X(d_head_huge, args->d_head = (int64_t)1 << 40, INVALID, "d_head is 1099511627776")            \
    X(o_partial_null, args->o_partial.data = NULL, INVALID, "o_partial.data is NULL")              \
    X(lse_partial_null, args->lse_partial = NULL, INVALID, "lse_partial is NULL")                  \
    X(o_null, args->o.data = NULL, INVALID, "o.data is NULL")                                      \
    X(stride_partial_negative, args->stride_partial = -1, INVALID, "stride_partial is -1: ")       \
    X(stride_partial_huge, args->stride_partial = INT64_MAX, INVALID, "o_partial overflows")       \
    X(o_partial_stride, args->o_partial.stride_seq = -1, INVALID, "o_partial.stride_seq is -1")    \
    X(o_stride, args->o.stride_seq = -1, INVALID, "o.stride_seq is -1")                            \
    X(o_overlaps, args->o.stride_seq = 1, INVALID, "o overlaps itself")                            \
    X(o_in_o_partial, args->o.data = (float *)args->o_partial.data + 8, INVALID,                   \
      "o overlaps o_partial")                                                                      \
    X(o_is_o_partial_of_another_type,                                                              \
      (args->o.data = args->o_partial.data, args->o.dtype = FLASH_DTYPE_FP16), INVALID,            \
      "o overlaps o_partial")                                                                      \
    X(o_is_o_partial_of_other_strides,                                                             \
      (args->o.data = args->o_partial.data, args->o.stride_batch += 8), INVALID,                   \
      "o overlaps o_partial")                                                                      \
    X(listed_null, args->o_partials = with_null, INVALID, "o_partials[1] is NULL")                 \
    X(listed_lse_null, args->lse_partials = (const float *const *)with_null, INVALID,              \
      "lse_partials[1] is NULL")                                                                   \
    X(stride_partial_forgotten, args->stride_partial = 0, INVALID, "stride_partial is 0 along")    \
    X(lse_partial_stride_forgotten,                                                                \
      (args->lse_partial_stride_batch = 12, args->lse_partial_stride_head = 3,                     \
       args->lse_partial_stride_seq = 1),                                                          \
      INVALID, "lse_partial_stride is 0 along more than one place: FLASH_FLAG_BROADCAST says")     \
    X(lse_partial_stride_negative, args->lse_partial_stride = -1, INVALID,                         \
      "lse_partial_stride is -1: negative")                                                        \
    X(strides_of_listed_forgotten,                                                                 \
      (args->o_partials = with_null, args->o_partial.stride_head = 0,                              \
       args->device = ABSENT_CUDA_DEVICE),                                                         \
      INVALID, "o_partial.stride_head is 0 along")                                                 \
    X(lse_strides_overlap, args->lse_stride_head = 1, INVALID, "lse_stride_batch is 0 along more") \
    X(rows_beyond_64_bits, args->batch = args->n_heads = args->seqlen_q = INT32_MAX, INVALID,      \
      "more rows than 64 bits count")                                                              \
    X(sinks_begin_in_o, args->sinks = (const float *)args->o.data + 191, INVALID,                  \
      "o overlaps sinks: o begins at ")                                                            \
    X(sinks_end_in_lse, args->sinks = args->lse - 3, INVALID,                                      \
      "lse overlaps sinks: lse begins at ")                                                        \
    X(o_reserved, args->o.reserved[0] = 1, FLASH_ERROR_UNSUPPORTED, "o.reserved")                  \
    X(struct_size_huge, args->struct_size = UINT32_MAX, INVALID, "struct_size is 4294967295")

#define DEFINE_REFUSAL(name, spoiling, status, words)                                              \
    static void spoil_##name(flash_combine_args_t *args) {                                         \
        spoiling;                                                                                  \
    }                                                                                              \
    static refusal_t refusal_##name = {spoil_##name, status, words};
REFUSALS(DEFINE_REFUSAL)

static void is_refused(void **state) {
    const refusal_t *r = *state;
    partials_t p;
    partials_create(&p);
    r->spoil(&p.args);
    assert_refused(flash_combine(&p.args, NULL), r->status, r->words);
    assert_true(problem_is_untouched(&p.whole));
    partials_destroy(&p);
}

#define REFUSAL_TEST(name, spoiling, status, words)                                                \
    {#name " is refused", is_refused, NULL, NULL, &refusal_##name},

int main(void) {
    ADD_TESTS(REFUSALS(REFUSAL_TEST));
    return run_all_tests(NULL, NULL);
}
