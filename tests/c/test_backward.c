/*
 * Gradients are compared with central differences of the forward pass, and every refusal names what
 * is wrong and writes nothing.
 */
#include "support.h"

#include <math.h>

#define INVALID     FLASH_ERROR_INVALID_ARGUMENT
#define UNSUPPORTED FLASH_ERROR_UNSUPPORTED

enum { N_GRADIENTS = 4, CANARY = 16 /* numbers on each side */, UNTOUCHED = 12345 };

/* The gradients of a problem, each between canaries, whose call is valid. */
typedef struct gradients {
    test_problem_t problem;
    flash_backward_args_t args;
    float sinks[8];
    float *d_o;
    float *d_lse;
    float *data[N_GRADIENTS]; /* dQ, dK, dV, those of sinks */
    size_t counts[N_GRADIENTS];
} gradients_t;

static void poison(gradients_t *g) {
    for (int i = 0; i < N_GRADIENTS; i++)
        for (size_t at = 0; at < g->counts[i] + 2 * CANARY; at++)
            g->data[i][(ptrdiff_t)at - CANARY] = UNTOUCHED;
}

static bool is_untouched(const gradients_t *g) {
    for (int i = 0; i < N_GRADIENTS; i++)
        for (size_t at = 0; at < g->counts[i] + 2 * CANARY; at++)
            if (g->data[i][(ptrdiff_t)at - CANARY] != UNTOUCHED)
                return false;
    return true;
}

static void check_canaries(const gradients_t *g) {
    for (int i = 0; i < N_GRADIENTS; i++)
        for (int at = 0; at < CANARY; at++)
            assert_true(g->data[i][-1 - at] == UNTOUCHED &&
                        g->data[i][g->counts[i] + (size_t)at] == UNTOUCHED);
}

static void reallocate_workspace(gradients_t *g) {
    free(g->args.workspace);
    g->args.workspace = NULL;
    assert_success(flash_backward_workspace_size(&g->args, NULL, &g->args.workspace_size));
    g->args.workspace = malloc((size_t)g->args.workspace_size);
    assert_non_null(g->args.workspace);
}

static float *fill(size_t count, uint32_t seed) {
    float *numbers = malloc(count * sizeof *numbers);
    assert_non_null(numbers);
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        numbers[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
    return numbers;
}

static void create_tensors(gradients_t *g, sizes_t s) {
    const size_t rows_k = (size_t)(s.batch * s.seqlen_k * s.n_heads_kv * s.d_head);
    const size_t counts[N_GRADIENTS] = {g->problem.o_count, rows_k, rows_k, (size_t)s.n_heads};
    g->d_o = fill(g->problem.o_count, 77);
    g->d_lse = fill(g->problem.lse_count, 78);
    for (int i = 0; i < N_GRADIENTS; i++) {
        float *memory = malloc((counts[i] + 2 * CANARY) * sizeof *memory);
        assert_non_null(memory);
        g->data[i] = memory + CANARY;
        g->counts[i] = counts[i];
    }
}

/* Runs the forward pass with sinks, and makes the call for gradients. */
static void gradients_create(gradients_t *g, sizes_t s) {
    flash_backward_args_t args = FLASH_BACKWARD_ARGS_INIT;
    problem_create(&g->problem, s, 5);
    for (int i = 0; i < s.n_heads; i++)
        g->sinks[i] = 0.5f * (float)i - 1;
    g->problem.args.sinks = g->sinks;
    problem_run(&g->problem);
    create_tensors(g, s);
    args.forward = &g->problem.args;
    args.d_o = flash_tensor_bshd(g->d_o, s.seqlen_q, s.n_heads, s.d_head);
    args.d_lse = g->d_lse;
    args.dq = flash_tensor_bshd(g->data[0], s.seqlen_q, s.n_heads, s.d_head);
    args.dk = flash_tensor_bshd(g->data[1], s.seqlen_k, s.n_heads_kv, s.d_head);
    args.dv = flash_tensor_bshd(g->data[2], s.seqlen_k, s.n_heads_kv, s.d_head);
    args.d_sinks = g->data[3];
    g->args = args;
    poison(g);
    reallocate_workspace(g);
}

static void gradients_destroy(gradients_t *g) {
    free(g->args.workspace);
    free(g->d_o);
    free(g->d_lse);
    for (int i = 0; i < N_GRADIENTS; i++)
        free(g->data[i] - CANARY);
    problem_destroy(&g->problem);
}

/* ---- Results ---- */

/* Returns sum(dO * O) + sum(dLSE * LSE). */
static double loss(gradients_t *g) {
    double sum = 0;
    problem_run(&g->problem);
    for (size_t i = 0; i < g->problem.o_count; i++)
        sum += (double)g->d_o[i] * (double)g->problem.o[i];
    for (size_t i = 0; i < g->problem.lse_count; i++)
        sum += (double)g->d_lse[i] * (double)g->problem.lse[i];
    return sum;
}

/* Compares some of the gradients of an input with differences of the loss. */
static void check_differences(gradients_t *g, float *input, int gradient) {
    const float step = 1.0f / 64;
    for (size_t i = 0; i < g->counts[gradient]; i += g->counts[gradient] / 4 + 1) {
        const float before = input[i];
        input[i] = before + step;
        const double above = loss(g);
        input[i] = before - step;
        const double below = loss(g);
        input[i] = before;
        const double expected = (above - below) / (2 * (double)step);
        const double error = fabs((double)g->data[gradient][i] - expected);
        if (!(error < 2e-3))
            fail_msg("gradient %d at %zu is %g: differences say %g", gradient, i,
                     (double)g->data[gradient][i], expected);
    }
}

TEST(gradients_are_those_of_differences) {
    gradients_t g;
    gradients_create(&g, SMALL);
    assert_success(flash_backward(&g.args, NULL));
    check_canaries(&g);
    check_differences(&g, g.problem.q, 0);
    check_differences(&g, g.problem.k, 1);
    check_differences(&g, g.problem.v, 2);
    check_differences(&g, g.sinks, 3);
    gradients_destroy(&g);
}

TEST(a_call_without_queries_or_keys_writes_zeros) {
    for (int empty = 0; empty < 3; empty++) {
        gradients_t g;
        gradients_create(&g, SMALL);
        if (empty == 0)
            g.problem.args.seqlen_q = 0;
        else if (empty == 1)
            g.problem.args.seqlen_k = 0;
        else
            g.problem.args.batch = 0;
        problem_run(&g.problem);
        reallocate_workspace(&g);
        assert_success(flash_backward(&g.args, NULL));
        check_canaries(&g);
        for (int i = 0; i < N_GRADIENTS; i++) {
            const bool is_there = i == 3 || (empty == 0 && i > 0) || (empty == 1 && i == 0);
            assert_true(g.data[i][0] == (is_there ? 0 : UNTOUCHED));
            assert_true(g.data[i][g.counts[i] - 1] == (is_there ? 0 : UNTOUCHED));
        }
        gradients_destroy(&g);
    }
}

/* ---- The caller's threads ---- */

typedef struct runs {
    int n;
    int32_t most_tasks;
} runs_t;

static void run_backwards(void *context, int32_t n_tasks, flash_task_t task, void *argument) {
    runs_t *runs = context;
    runs->n++;
    runs->most_tasks = n_tasks > runs->most_tasks ? n_tasks : runs->most_tasks;
    for (int32_t i = n_tasks; i-- > 0;)
        task(argument, i);
}

static const sizes_t SHARED = {
    .batch = 2, .seqlen_q = 70, .seqlen_k = 50, .n_heads = 4, .n_heads_kv = 2, .d_head = 8};

TEST(an_executor_runs_a_call_with_the_same_bits) {
    runs_t runs = {0};
    flash_executor_t executor = FLASH_EXECUTOR_INIT;
    gradients_t g, expected;
    gradients_create(&expected, SHARED);
    assert_success(flash_backward(&expected.args, NULL));
    gradients_create(&g, SHARED);
    executor.run = run_backwards;
    executor.context = &runs;
    executor.n_workers = 3;
    g.problem.args.executor = &executor;
    reallocate_workspace(&g);
    assert_success(flash_backward(&g.args, NULL));
    assert_true(runs.n > 0);
    assert_int_equal(runs.most_tasks, 3);
    for (int i = 0; i < N_GRADIENTS; i++)
        assert_memory_equal(g.data[i], expected.data[i], g.counts[i] * sizeof(float));
    gradients_destroy(&g);
    gradients_destroy(&expected);
}

TEST(prepare_and_the_choice_of_kernels) {
    const flash_kernel_t *dq = NULL, *dkv = NULL;
    char reason[400] = "", support[400] = "";
    gradients_t g;
    gradients_create(&g, SMALL);
    assert_success(flash_backward_prepare(&g.args));
    assert_success(flash_backward_select_kernels(&g.args, &dq, &dkv, reason, sizeof reason));
    assert_non_null(strstr(flash_kernel_name(dq), "flash_bwd_dq_"));
    assert_non_null(strstr(flash_kernel_name(dkv), "flash_bwd_dkv_"));
    assert_non_null(strstr(reason, "dQ: "));
    assert_non_null(strstr(reason, "; dK, dV: "));
    assert_success(flash_backward_query_support(&g.args, support, sizeof support));
    assert_string_equal(support, reason);
    assert_success(flash_backward_select_kernels(&g.args, NULL, NULL, NULL, 0));
    assert_success(flash_backward_select_kernels(&g.args, NULL, &dkv, reason, 5));
    assert_string_equal(reason, "dQ: ");
    g.args.dq_kernel = dq;
    g.args.dkv_kernel = dkv;
    assert_success(flash_backward(&g.args, NULL));
    gradients_destroy(&g);
}

/* ---- The workspace ---- */

static void sizes_for(sizes_t s, uint64_t *least, uint64_t *best) {
    gradients_t g;
    gradients_create(&g, s);
    g.problem.args.o.data = NULL;
    g.args.d_o.data = NULL;
    assert_success(flash_backward_workspace_size(&g.args, least, best));
    gradients_destroy(&g);
}

/* A head has fewer rows where there are more K/V heads, and a worker less scratch. */
TEST(the_workspace_grows_with_every_size_but_heads_kv) {
    uint64_t least = 0, best = 0;
    sizes_for(SMALL, &least, &best);
    assert_true(0 < least && least <= best);
    for (int i = 0; i < 5; i++) {
        sizes_t s = SMALL;
        int64_t *const sizes[] = {&s.batch, &s.seqlen_q, &s.seqlen_k, &s.n_heads, &s.d_head};
        uint64_t larger_least = 0, larger_best = 0;
        *sizes[i] *= 2;
        sizes_for(s, &larger_least, &larger_best);
        assert_true(least <= larger_least && best <= larger_best);
    }
}

TEST(the_largest_sizes_ask_for_more_than_there_is) {
    uint64_t least = 0, best = 0;
    gradients_t g;
    gradients_create(&g, SMALL);
    flash_forward_args_t *const f = &g.problem.args;
    f->batch = f->seqlen_q = f->seqlen_k = INT32_MAX;
    f->n_heads = f->n_heads_kv = INT32_MAX;
    assert_success(flash_backward_workspace_size(&g.args, &least, &best));
    assert_true(least == UINT64_MAX && best == UINT64_MAX);
    gradients_destroy(&g);
}

TEST(less_than_the_least_is_refused) {
    uint64_t least = 0;
    char words[80];
    gradients_t g;
    gradients_create(&g, SMALL);
    assert_success(flash_backward_workspace_size(&g.args, &least, NULL));
    g.args.workspace_size = least - 1;
    snprintf(words, sizeof words, "workspace_size is %llu: needs", (unsigned long long)least - 1);
    assert_refused(flash_backward(&g.args, NULL), FLASH_ERROR_WORKSPACE_TOO_SMALL, words);
    free(g.args.workspace);
    g.args.workspace = NULL;
    assert_refused(flash_backward(&g.args, NULL), INVALID, "workspace is NULL, and workspace_size");
    assert_true(is_untouched(&g));
    assert_refused(flash_backward_workspace_size(&g.args, NULL, NULL), INVALID,
                   "least and best are NULL");
    gradients_destroy(&g);
}

/* ---- Refusals ---- */

/* A test changes these structs of a valid call. */
typedef void (*change_t)(gradients_t *g);

/* Fails the test unless the changed call is refused, and by the query for support too where that
 * can tell: where sizes, types and flags alone are wrong. */
static void refuses(change_t change, flash_status_t status, const char *words, bool by_query) {
    char reason[400] = "";
    gradients_t g;
    gradients_create(&g, SMALL);
    change(&g);
    assert_refused(flash_backward(&g.args, NULL), status, words);
    assert_true(is_untouched(&g));
    const flash_status_t found = flash_backward_query_support(&g.args, reason, sizeof reason);
    assert_int_equal(found, by_query ? status : FLASH_SUCCESS);
    if (by_query)
        assert_non_null(strstr(reason, words));
    gradients_destroy(&g);
}

#define CHANGE(name, ...)                                                                          \
    static void name(gradients_t *g) {                                                             \
        __VA_ARGS__;                                                                               \
    }

/* Sizes, types and flags. */
CHANGE(no_forward, g->args.forward = NULL)
CHANGE(unknown_flag, g->args.flags = 8)
CHANGE(reserved, g->args.reserved[7] = 1)
CHANGE(reserved_of_forward, g->problem.args.reserved[0] = 1)
CHANGE(flag_of_forward, g->problem.args.flags = 1u << 31)
CHANGE(size_of_struct, g->args.struct_size = 3)
CHANGE(type_of_d_o, g->args.d_o.dtype = FLASH_DTYPE_BF16)
CHANGE(type_of_dq, g->args.dq.dtype = FLASH_DTYPE_FP16)
CHANGE(type_of_dk, g->args.dk.dtype = FLASH_DTYPE_BF16)
CHANGE(type_of_dv, g->args.dv.dtype = FLASH_DTYPE_E4M3)
CHANGE(unknown_type, g->args.dv.dtype = 99)
CHANGE(k_of_codes, g->problem.args.k.dtype = g->problem.args.v.dtype = FLASH_DTYPE_E4M3)
CHANGE(v_of_blocks, flash_tensor_t *const v = &g->problem.args.v; v->dtype = FLASH_DTYPE_Q8_0;
       v->stride_head = v->stride_seq = v->stride_batch = 3400; g->problem.args.d_head_v = 32)
CHANGE(two_types, g->problem.args.v.dtype = FLASH_DTYPE_FP16)
CHANGE(adds_16_bits, g->args.flags = FLASH_BACKWARD_ADD_DK; g->problem.args.dtype = 0;
       g->problem.args.q.dtype = g->problem.args.o.dtype = FLASH_DTYPE_FP32;
       g->problem.args.k.dtype = g->problem.args.v.dtype = FLASH_DTYPE_BF16;
       g->problem.args.dtype = FLASH_DTYPE_FP32)
CHANGE(total_q_negative, g->args.total_q = -1)
CHANGE(total_k_too_large, g->args.total_k = (int64_t)INT32_MAX + 1)
CHANGE(sinks_of_none, g->problem.args.sinks = NULL)
CHANGE(heads, g->problem.args.n_heads = 3)
CHANGE(shifted_on_cuda, g->problem.args.device = FLASH_DEVICE_CUDA;
       g->problem.args.diagonal_offset = -2)

TEST(wrong_sizes_types_and_flags) {
    refuses(no_forward, INVALID, "forward is NULL", true);
    refuses(unknown_flag, INVALID, "flags is 0x8: unknown bits 0x8", true);
    refuses(reserved, UNSUPPORTED, "flash_backward_args_t.reserved is not zero", true);
    refuses(reserved_of_forward, UNSUPPORTED, "flash_forward_args_t.reserved is not zero", true);
    refuses(flag_of_forward, INVALID, "unknown bits 0x80000000", true);
    refuses(size_of_struct, INVALID, "flash_backward_args_t", true);
    refuses(type_of_d_o, UNSUPPORTED, "d_o.dtype is 2: not that of o, 3", true);
    refuses(type_of_dq, UNSUPPORTED, "dq.dtype is 1: neither 3", true);
    refuses(type_of_dk, UNSUPPORTED, "dk.dtype is 2: neither 3", true);
    refuses(type_of_dv, UNSUPPORTED, "dv.dtype is 4: neither 3", true);
    refuses(unknown_type, UNSUPPORTED, "dv.dtype is 99: neither 3", true);
    refuses(k_of_codes, UNSUPPORTED, "k.dtype is 4", true);
    refuses(v_of_blocks, UNSUPPORTED, "v.dtype is", true);
    refuses(two_types, UNSUPPORTED, "k.dtype is 3 and v.dtype 1: K and V of two types have no",
            true);
    refuses(adds_16_bits, INVALID, "dk.dtype is 2, and flags says that it is added", true);
    refuses(total_q_negative, INVALID, "total_q is -1", true);
    refuses(total_k_too_large, INVALID, "total_k is 2147483648", true);
    refuses(sinks_of_none, INVALID, "d_sinks is given, and sinks is NULL", true);
    refuses(heads, INVALID, "n_heads is 3: not a multiple", true);
    refuses(shifted_on_cuda, UNSUPPORTED,
            "diagonal_offset is -2, and device is 0x10000: no kernel for CUDA devices computes",
            true);
}

/* Each case has a wrong pointer, or wrong strides. */
CHANGE(no_o, g->problem.args.o.data = NULL)
CHANGE(no_lse, g->problem.args.lse = NULL)
CHANGE(no_d_o, g->args.d_o.data = NULL)
CHANGE(stride_of_d_o, g->args.d_o.stride_seq = 0)
CHANGE(negative_stride, g->args.dq.stride_head = -8)
CHANGE(repeated_dk, g->args.dk.stride_batch = 0; g->problem.args.flags |= FLASH_FLAG_BROADCAST)
CHANGE(dv_over_itself, g->args.dv.stride_head = 7)
CHANGE(stride_of_d_lse, g->args.d_lse_stride_seq = 1)
CHANGE(negative_d_lse, g->args.d_lse_stride_batch = -1; g->args.d_lse_stride_seq = 1)
CHANGE(reserved_of_dv, g->args.dv.reserved[0] = 1)
CHANGE(reserved_of_no_dq, g->args.dq.data = NULL; g->args.dq.reserved32 = 1)
CHANGE(dq_over_q, g->args.dq.data = g->problem.q)
CHANGE(dk_over_o, g->args.dk.data = g->problem.o)
CHANGE(dv_over_lse, g->args.dv.data = (char *)g->problem.lse + 4)
CHANGE(dv_over_dk, g->args.dv.data = g->data[1] + 7)
CHANGE(dq_over_d_o, g->args.dq.data = g->d_o)
CHANGE(dq_over_d_lse, g->args.dq.data = g->d_lse + 1)
CHANGE(dq_in_the_workspace, g->args.dq.data = g->args.workspace)
CHANGE(k_in_the_workspace, g->problem.args.k.data = g->args.workspace)
CHANGE(sinks_over_sinks, g->args.d_sinks = g->sinks + 1)
CHANGE(sinks_over_dq, g->args.d_sinks = g->data[0] + 3)

TEST(wrong_pointers_and_strides) {
    refuses(no_o, INVALID, "o.data is NULL", false);
    refuses(no_lse, INVALID, "lse is NULL: gradients need", false);
    refuses(no_d_o, INVALID, "d_o.data is NULL", false);
    refuses(stride_of_d_o, INVALID, "d_o.stride_seq is 0 along more than one place", false);
    refuses(negative_stride, INVALID, "dq.stride_head is -8: negative", false);
    refuses(repeated_dk, INVALID, "dk.stride_batch is 0 along more than one place: no place of an",
            false);
    refuses(dv_over_itself, INVALID, "dv overlaps itself: dv.stride_head is 7", false);
    refuses(stride_of_d_lse, INVALID, "d_lse_stride_batch is 0 along more than one place", false);
    refuses(negative_d_lse, INVALID, "d_lse_stride_batch is -1: negative", false);
    refuses(reserved_of_dv, UNSUPPORTED, "dv.reserved is not zero", false);
    refuses(reserved_of_no_dq, UNSUPPORTED, "dq.reserved is not zero", false);
    refuses(dq_over_q, INVALID, "dq overlaps q: ", false);
    refuses(dk_over_o, INVALID, "dk overlaps o: ", false);
    refuses(dv_over_lse, INVALID, "dv overlaps lse: ", false);
    refuses(dv_over_dk, INVALID, "dv overlaps dk: ", false);
    refuses(dq_over_d_o, INVALID, "dq overlaps d_o: ", false);
    refuses(dq_over_d_lse, INVALID, "dq overlaps d_lse: ", false);
    refuses(dq_in_the_workspace, INVALID, "workspace overlaps dq: ", false);
    refuses(k_in_the_workspace, INVALID, "workspace overlaps k: ", false);
    refuses(sinks_over_sinks, INVALID, "d_sinks overlaps sinks: ", false);
    refuses(sinks_over_dq, INVALID, "d_sinks overlaps dq: ", false);
}

TEST(no_arguments) {
    uint64_t size = 0;
    assert_refused(flash_backward(NULL, NULL), INVALID, "flash_backward_args_t");
    assert_refused(flash_backward_workspace_size(NULL, &size, NULL), INVALID,
                   "flash_backward_args_t");
    assert_refused(flash_backward_prepare(NULL), INVALID, "flash_backward_args_t");
    assert_refused(flash_backward_select_kernels(NULL, NULL, NULL, NULL, 0), INVALID,
                   "flash_backward_args_t");
    assert_refused(flash_backward_query_support(NULL, NULL, 0), INVALID, "flash_backward_args_t");
}

TEST(pages_have_no_gradients) {
    static const int32_t table[4] = {0, 1, 2, 3}, used[2] = {2, 2};
    flash_paging_t paging = FLASH_PAGING_INIT;
    gradients_t g;
    gradients_create(&g, SMALL);
    paging.page_table = table;
    paging.page_table_stride = 2;
    paging.page_size = 5;
    paging.n_pages = 2;
    g.problem.args.paging = &paging;
    g.problem.args.seqused_k = used;
    assert_refused(flash_backward(&g.args, NULL), UNSUPPORTED,
                   "paging is given: K and V in pages have no gradients");
    assert_true(is_untouched(&g));
    gradients_destroy(&g);
}

TEST(a_stream_is_for_cuda_devices) {
    gradients_t g;
    int anything = 0;
    gradients_create(&g, SMALL);
    assert_refused(flash_backward(&g.args, &anything), INVALID, "stream");
    assert_true(is_untouched(&g));
    gradients_destroy(&g);
}

TEST(an_absent_cuda_device) {
    gradients_t g;
    gradients_create(&g, SMALL);
    g.problem.args.device = ABSENT_CUDA_DEVICE;
    assert_refused(flash_backward(&g.args, NULL), (flash_status_t)ABSENT_DEVICE_STATUS, "");
    assert_true(is_untouched(&g));
    gradients_destroy(&g);
}

TEST(ragged_tensors_end_within_their_totals) {
    static const int32_t q_ends[3] = {0, 3, 6}, k_ends[3] = {0, 5, 10};
    gradients_t g;
    gradients_create(&g, SMALL);
    g.problem.args.cu_seqlens_q = q_ends;
    g.problem.args.cu_seqlens_k = k_ends;
    g.args.total_q = 5;
    assert_refused(flash_backward(&g.args, NULL), INVALID,
                   "total_q is 5, and cu_seqlens_q ends with 6 tokens");
    g.args.total_q = 6;
    g.args.total_k = 9;
    assert_refused(flash_backward(&g.args, NULL), INVALID,
                   "total_k is 9, and cu_seqlens_k ends with 10 tokens");
    assert_true(is_untouched(&g));
    g.args.total_k = 10;
    reallocate_workspace(&g);
    assert_success(flash_backward(&g.args, NULL));
    check_canaries(&g);
    gradients_destroy(&g);
}

TEST(rows_of_another_operation) {
    const flash_kernel_t *forward = NULL, *dq = NULL, *dkv = NULL;
    gradients_t g;
    gradients_create(&g, SMALL);
    assert_success(flash_select_kernel(&g.problem.args, &forward, NULL, 0));
    assert_success(flash_backward_select_kernels(&g.args, &dq, &dkv, NULL, 0));
    g.args.dq_kernel = forward;
    assert_refused(flash_backward(&g.args, NULL), UNSUPPORTED,
                   "op. The kernel computes forward, the call backward_dq");
    g.args.dq_kernel = dkv;
    assert_refused(flash_backward(&g.args, NULL), UNSUPPORTED,
                   "op. The kernel computes backward_dkv, the call backward_dq");
    g.args.dq_kernel = NULL;
    g.args.dkv_kernel = dq;
    assert_refused(flash_backward(&g.args, NULL), UNSUPPORTED,
                   "op. The kernel computes backward_dq, the call backward_dkv");
    assert_refused(flash_forward(&g.problem.args, dq, NULL), UNSUPPORTED,
                   "op. The kernel computes backward_dq, the call forward");
    assert_true(is_untouched(&g));
    gradients_destroy(&g);
}

/* ---- Newer and older headers ---- */

typedef struct newer_args {
    flash_backward_args_t known;
    unsigned char unknown[64];
} newer_args_t;

TEST(a_newer_caller) {
    newer_args_t newer;
    gradients_t g;
    gradients_create(&g, SMALL);
    memset(&newer, 0, sizeof newer);
    newer.known = g.args;
    newer.known.struct_size = sizeof newer;
    newer.unknown[63] = 1;
    assert_refused(flash_backward(&newer.known, NULL), UNSUPPORTED, "flash_backward_args_t");
    assert_true(is_untouched(&g));
    newer.unknown[63] = 0;
    assert_success(flash_backward(&newer.known, NULL));
    check_canaries(&g);
    gradients_destroy(&g);
}

/* What a smaller struct lacks reads as zeros: the workspace is NULL. */
TEST(an_older_caller) {
    const uint32_t size = offsetof(flash_backward_args_t, workspace);
    gradients_t g;
    void *older = malloc(size); /* exactly, so that a sanitizer sees more */
    uint64_t least = 0, expected = 0;
    assert_non_null(older);
    gradients_create(&g, SMALL);
    memcpy(older, &g.args, size);
    memcpy(older, &size, sizeof size);
    assert_success(flash_backward_workspace_size(&g.args, &expected, NULL));
    assert_success(flash_backward_workspace_size(older, &least, NULL));
    assert_int_equal(least, expected);
    assert_refused(flash_backward(older, NULL), FLASH_ERROR_WORKSPACE_TOO_SMALL,
                   "workspace_size is 0");
    assert_true(is_untouched(&g));
    free(older);
    gradients_destroy(&g);
}
