/*
 * The results of every kernel that this machine runs are compared with a double loop, in fp32. The
 * oracle, the other types and the wide ranges are in tests/python.
 */
#include "support.h"

#include <math.h>

static void check_flags(sizes_t sizes, uint32_t flags, int64_t left, int64_t right, float softcap) {
    test_problem_t p;
    problem_create(&p, sizes, 3);
    p.args.flags = flags;
    p.args.window_left = left;
    p.args.window_right = right;
    p.args.softcap = softcap;
    problem_reallocate_workspace(&p);
    problem_run(&p);
    problem_check_result(&p);
    problem_destroy(&p);
}

static const sizes_t SIZES[] = {
    {.batch = 2, .seqlen_q = 3, .seqlen_k = 5, .n_heads = 4, .n_heads_kv = 2, .d_head = 8},
    {.batch = 1, .seqlen_q = 65, .seqlen_k = 129, .n_heads = 3, .n_heads_kv = 1, .d_head = 24},
    {.batch = 1, .seqlen_q = 1, .seqlen_k = 1000, .n_heads = 8, .n_heads_kv = 2, .d_head = 64},
    {.batch = 2, .seqlen_q = 70, .seqlen_k = 33, .n_heads = 2, .n_heads_kv = 2, .d_head = 13},
    {.batch = 1, .seqlen_q = 4, .seqlen_k = 1, .n_heads = 1, .n_heads_kv = 1, .d_head = 1},
    {.batch = 1, .seqlen_q = 4, .seqlen_k = 0, .n_heads = 1, .n_heads_kv = 1, .d_head = 8},
};
enum { N_SIZES = sizeof SIZES / sizeof SIZES[0] };

TEST(masks_and_softcap) {
    for (int i = 0; i < N_SIZES; i++) {
        check_flags(SIZES[i], 0, 0, 0, 0);
        check_flags(SIZES[i], FLASH_FLAG_CAUSAL, 0, 0, 0);
        check_flags(SIZES[i], FLASH_FLAG_WINDOW, 7, 0, 0);
        check_flags(SIZES[i], FLASH_FLAG_WINDOW, 0, 0, 0);
        check_flags(SIZES[i], FLASH_FLAG_WINDOW, -1, 3, 0);
        check_flags(SIZES[i], FLASH_FLAG_WINDOW | FLASH_FLAG_CAUSAL, 5, 9, 0);
        check_flags(SIZES[i], FLASH_FLAG_BATCH_INVARIANT, 0, 0, 0.5f);
    }
}

TEST(a_shifted_diagonal) {
    static const int64_t offsets[] = {-200, -64, -2, 1, 30, 900};
    for (int i = 0; i < N_SIZES; i++)
        for (size_t j = 0; j < sizeof offsets / sizeof offsets[0]; j++) {
            test_problem_t p;
            problem_create(&p, SIZES[i], 3);
            p.args.flags = FLASH_FLAG_CAUSAL | FLASH_FLAG_WINDOW;
            p.args.window_left = j % 2 ? 40 : -1;
            p.args.window_right = 0;
            p.args.diagonal_offset = offsets[j];
            problem_reallocate_workspace(&p);
            problem_run(&p);
            problem_check_result(&p);
            problem_destroy(&p);
        }
}

/* An array of sinks may have any alignment on the CPU. */
TEST(sinks) {
    static const float values[] = {0.5f, -1, 2, 0, 1, -3, 0.25f, 3};
    char unaligned[sizeof values + 1];
    memcpy(unaligned + 1, values, sizeof values);
    for (int i = 0; i < N_SIZES; i++) {
        test_problem_t p, q;
        problem_create(&p, SIZES[i], 6);
        problem_create(&q, SIZES[i], 6);
        p.args.flags = q.args.flags = FLASH_FLAG_CAUSAL;
        p.args.sinks = values;
        q.args.sinks = (const float *)(const void *)(unaligned + 1);
        problem_run(&p);
        problem_run(&q);
        problem_check_result(&p);
        assert_true(problem_same_bits(&p, &q));
        problem_destroy(&p);
        problem_destroy(&q);
    }
}

enum { SLOPE_STRIDE = 9, MASK_ROW = 40, MASK_ELEMENTS = 8 * 70 * MASK_ROW };

static const float FACTORS[SLOPE_STRIDE] = {0.5f, -2, 1, 0, 0.25f, -1, 2, 1, 0.75f};

/* Runs the problem with slopes and a mask, in aligned memory and elsewhere. */
static void check_bias(sizes_t sizes, flash_mask_t mask, const void *elements) {
    static const float slopes[2 * SLOPE_STRIDE] = {0.5f, 0.25f, 0, 1, 0.125f, 2, 0, 3, 0, 1, 0.75f};
    static char unaligned[MASK_ELEMENTS * sizeof(float) + 1], slopes_unaligned[sizeof slopes + 1];
    static char factors_unaligned[sizeof FACTORS + 1];
    test_problem_t p, q;
    flash_mask_t other = mask;
    memcpy(unaligned + 1, elements, MASK_ELEMENTS * sizeof(float));
    memcpy(slopes_unaligned + 1, slopes, sizeof slopes);
    memcpy(factors_unaligned + 1, FACTORS, sizeof FACTORS);
    mask.data = elements;
    other.data = unaligned + 1;
    if (mask.head_scale != NULL)
        other.head_scale = (const float *)(const void *)(factors_unaligned + 1);
    problem_create(&p, sizes, 8);
    problem_create(&q, sizes, 8);
    p.args.flags = q.args.flags = FLASH_FLAG_CAUSAL;
    p.args.alibi_slopes = slopes;
    q.args.alibi_slopes = (const float *)(const void *)(slopes_unaligned + 1);
    p.args.alibi_stride_batch = q.args.alibi_stride_batch = SLOPE_STRIDE;
    p.args.mask = &mask;
    q.args.mask = &other;
    problem_run(&p);
    problem_run(&q);
    problem_check_result(&p);
    assert_true(problem_same_bits(&p, &q));
    problem_destroy(&p);
    problem_destroy(&q);
}

/* Both may have any alignment on the CPU. */
TEST(slopes_and_masks) {
    static float numbers[MASK_ELEMENTS];
    static uint32_t words[MASK_ELEMENTS];
    for (int i = 0; i < MASK_ELEMENTS; i++) {
        numbers[i] = i % 7 == 3 ? -INFINITY : (float)(i % 11) / 8;
        words[i] = (uint32_t)i * 2654435761u;
    }
    for (int i = 0; i < N_SIZES; i++) {
        flash_mask_t mask = FLASH_MASK_INIT;
        mask.kind = FLASH_MASK_ADD;
        mask.dtype = FLASH_DTYPE_FP32;
        mask.stride_head = 70 * MASK_ROW;
        mask.stride_query = MASK_ROW;
        mask.stride_key = 1;
        mask.first_key = 2;
        mask.n_keys = 33;
        check_bias(SIZES[i], mask, numbers);
        mask.head_scale = FACTORS;
        check_bias(SIZES[i], mask, numbers);
        mask.flags = FLASH_MASK_LAST_KEYS;
        mask.first_key = 0;
        mask.n_keys = 20;
        mask.stride_key = 2;
        check_bias(SIZES[i], mask, numbers);
        mask.kind = FLASH_MASK_BITS;
        mask.dtype = 0;
        mask.head_scale = NULL;
        mask.stride_key = 0;
        mask.n_keys = 1000;
        check_bias(SIZES[i], mask, words);
    }
}

static void run_with(test_problem_t *p, const flash_kernel_t *kernel) {
    free(p->args.workspace);
    assert_success(flash_workspace_size(&p->args, kernel, &p->args.workspace_size));
    p->args.workspace = malloc((size_t)p->args.workspace_size);
    problem_poison(p);
    assert_success(flash_forward(&p->args, kernel, NULL));
}

TEST(every_kernel_of_the_machine) {
    for (int i = 0; i < N_SIZES; i++) {
        test_problem_t p;
        int n_run = 0;
        problem_create(&p, SIZES[i], 4);
        p.args.flags = FLASH_FLAG_CAUSAL;
        for (int32_t j = 0; j < flash_kernel_count(); j++) {
            flash_config_t config = FLASH_CONFIG_INIT;
            assert_success(flash_kernel_config(flash_kernel_at(j), &config));
            if (!is_forward_row(flash_kernel_at(j)) || config.dtype != FLASH_DTYPE_FP32 ||
                flash_lookup_kernel(&config) == NULL)
                continue;
            run_with(&p, flash_kernel_at(j));
            problem_check_result(&p);
            n_run++;
        }
        assert_true(n_run > 0);
        problem_destroy(&p);
    }
}

TEST(rows_without_keys_are_zero) {
    const sizes_t sizes = {
        .batch = 1, .seqlen_q = 4, .seqlen_k = 2, .n_heads = 1, .n_heads_kv = 1, .d_head = 8};
    test_problem_t p;
    problem_create(&p, sizes, 5);
    p.args.flags = FLASH_FLAG_CAUSAL; /* queries 0 and 1 lie before the first key */
    problem_run(&p);
    for (int i = 0; i < 16; i++)
        assert_true(p.o[i] == 0.0f);
    assert_true(isinf(p.lse[0]) && p.lse[0] < 0 && isinf(p.lse[1]) && p.lse[1] < 0);
    assert_true(isfinite(p.lse[2]) && isfinite(p.lse[3]));
    problem_check_result(&p);
    problem_destroy(&p);
}

TEST(without_lse_nothing_else_changes) {
    test_problem_t with, without;
    problem_create(&with, SMALL, 6);
    problem_create(&without, SMALL, 6);
    without.args.lse = NULL;
    problem_run(&with);
    problem_run(&without);
    assert_memory_equal(with.o, without.o, with.o_count * sizeof *with.o);
    assert_true(isnan(without.lse[0]));
    problem_check_canaries(&without);
    problem_destroy(&with);
    problem_destroy(&without);
}

TEST(broadcast_keys) {
    test_problem_t p;
    problem_create(&p, SMALL, 7);
    p.args.flags = FLASH_FLAG_BROADCAST;
    p.args.k.stride_batch = p.args.v.stride_head = p.args.q.stride_seq = 0;
    problem_run(&p);
    problem_check_result(&p);
    problem_destroy(&p);
}

/* Two sequences in one ragged tensor give the same as the two sequences alone. */
TEST(a_ragged_batch) {
    static const int32_t cu_q[] = {0, 3, 5}, cu_k[] = {0, 5, 9}, used[] = {4, 4};
    test_problem_t p;
    problem_create(&p, SMALL, 8);
    p.args.cu_seqlens_q = cu_q;
    p.args.cu_seqlens_k = cu_k;
    p.args.seqused_k = used;
    problem_reallocate_workspace(&p);
    problem_run(&p);
    for (int b = 0; b < 2; b++) {
        test_problem_t alone = p;
        float lse[4 * 3];
        alone.args.batch = 1;
        alone.args.cu_seqlens_q = alone.args.cu_seqlens_k = alone.args.seqused_k = NULL;
        alone.args.seqlen_q = cu_q[b + 1] - cu_q[b];
        alone.args.seqlen_k = used[b];
        alone.args.q.data = p.q + cu_q[b] * p.args.q.stride_seq;
        alone.args.o.data = p.o + cu_q[b] * p.args.o.stride_seq;
        alone.args.k.data = p.k + cu_k[b] * p.args.k.stride_seq;
        alone.args.v.data = p.v + cu_k[b] * p.args.v.stride_seq;
        for (int64_t h = 0; h < 4; h++) /* [n_heads, total_q] to [n_heads, seqlen_q] */
            for (int64_t i = 0; i < alone.args.seqlen_q; i++)
                lse[h * alone.args.seqlen_q + i] = p.lse[h * 5 + cu_q[b] + i];
        alone.args.lse = lse;
        problem_check_result(&alone);
    }
    problem_destroy(&p);
}

TEST(unaligned_pointers_are_served) {
    test_problem_t p;
    unsigned char *o, *q;
    problem_create(&p, SMALL, 9);
    q = malloc(p.o_count * sizeof(float) + 1);
    o = malloc(p.o_count * sizeof(float) + 1);
    assert_true(q != NULL && o != NULL);
    memcpy(q + 1, p.q, p.o_count * sizeof(float));
    p.args.q.data = q + 1;
    p.args.o.data = o + 1;
    problem_run(&p);
    memcpy(p.o, o + 1, p.o_count * sizeof(float));
    p.args.q.data = p.q;
    p.args.o.data = p.o;
    problem_check_result(&p);
    free(q);
    free(o);
    problem_destroy(&p);
}

/* The workspace of one thread suffices, and a byte less does not. */
TEST(the_least_workspace) {
    test_problem_t p;
    problem_create(&p, SIZES[2], 10);
    assert_success(flash_set_num_threads(1));
    problem_reallocate_workspace(&p);
    problem_run(&p);
    problem_check_result(&p);
    problem_poison(&p);
    if (p.args.workspace_size > 0) {
        p.args.workspace_size--;
        assert_refused(flash_forward(&p.args, NULL, NULL), FLASH_ERROR_WORKSPACE_TOO_SMALL,
                       "workspace");
        assert_true(problem_is_untouched(&p));
    }
    assert_success(flash_set_num_threads(0));
    problem_destroy(&p);
}

/* query_support() reads no data; select_kernel() returns the kernel that forward() takes. */
TEST(the_selected_kernel_serves) {
    test_problem_t p;
    flash_config_t config = FLASH_CONFIG_INIT;
    const flash_kernel_t *kernel = NULL;
    char reason[256] = "";
    flash_forward_args_t shape;
    problem_create(&p, SMALL, 11);
    shape = p.args;
    shape.q.data = shape.k.data = shape.v.data = shape.o.data = shape.workspace = NULL;
    assert_success(flash_select_kernel(&shape, &kernel, reason, sizeof reason));
    assert_true(reason[0] != '\0');
    assert_success(flash_query_support(&shape, kernel, NULL, 0));
    assert_success(flash_prepare(&shape, kernel));
    assert_success(flash_kernel_config(kernel, &config));
    assert_ptr_equal(flash_lookup_kernel(&config), kernel);
    assert_success(flash_forward(&p.args, kernel, NULL));
    problem_check_result(&p);
    problem_destroy(&p);
}

/* A caller may plan a call before there is memory for its mask. */
TEST(a_mask_without_data_is_planned) {
    test_problem_t p;
    flash_mask_t mask = FLASH_MASK_INIT;
    const float numbers[MASK_ROW] = {0};
    const flash_kernel_t *planned = NULL, *selected = NULL;
    uint64_t size = 0;
    problem_create(&p, SMALL, 11);
    mask.kind = FLASH_MASK_ADD;
    mask.stride_key = 1;
    mask.n_keys = SMALL.seqlen_k;
    p.args.mask = &mask;
    assert_success(flash_query_support(&p.args, NULL, NULL, 0));
    assert_success(flash_workspace_size(&p.args, NULL, &size));
    assert_success(flash_select_kernel(&p.args, &planned, NULL, 0));
    assert_success(flash_prepare(&p.args, planned));
    mask.data = numbers;
    assert_success(flash_workspace_size(&p.args, NULL, &p.args.workspace_size));
    assert_int_equal(p.args.workspace_size, size);
    assert_success(flash_select_kernel(&p.args, &selected, NULL, 0));
    assert_ptr_equal(selected, planned);
    problem_destroy(&p);
}
