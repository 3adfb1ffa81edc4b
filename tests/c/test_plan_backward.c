/*
 * The plan of a backward call on a CUDA device: what is copied, and where everything lies. What the
 * kernels do with it takes a GPU (tests/gpu/test_gpu_backward.py).
 */
#include "cuda/backward/plan_backward.h"
#include "support.h"

enum { BATCH = 3, QUERIES = 50, KEYS = 70, HEADS = 4, HEADS_KV = 2, D_HEAD = 64 };

static char memory[1 << 20];

static flash_strides_t dense(int64_t seqlen, int64_t heads, int64_t d_head) {
    return (flash_strides_t){seqlen * heads * d_head, heads * d_head, d_head};
}

/* Makes a problem of bf16 whose tensors have no addresses yet. */
static problem_t make_problem(int32_t d_head) {
    problem_t problem = {.dtype = FLASH_DTYPE_BF16};
    problem.params = (flash_params_t){.q_stride = dense(QUERIES, HEADS, d_head),
                                      .k_stride = dense(KEYS, HEADS_KV, d_head),
                                      .v_stride = dense(KEYS, HEADS_KV, d_head),
                                      .o_stride = dense(QUERIES, HEADS, d_head),
                                      .q_dtype = FLASH_DTYPE_BF16,
                                      .v_dtype = FLASH_DTYPE_BF16,
                                      .o_dtype = FLASH_DTYPE_BF16,
                                      .batch = BATCH,
                                      .seqlen_q = QUERIES,
                                      .seqlen_k = KEYS,
                                      .n_heads = HEADS,
                                      .n_heads_kv = HEADS_KV,
                                      .d_head = d_head,
                                      .d_head_v = d_head};
    problem.gradients = (flash_gradients_t){.d_o_stride = dense(QUERIES, HEADS, d_head),
                                            .n_rows = BATCH * QUERIES,
                                            .n_keys = BATCH * KEYS};
    return problem;
}

static int count_copies(const problem_t *problem) {
    const backward_plan_t plan = plan_backward(problem);
    int count = 0;
    for (int i = 0; i < BACKWARD_N_INPUTS; i++)
        count += plan.copies[i].is_copied;
    return count;
}

TEST(aligned_rows_are_read_where_they_are) {
    const problem_t problem = make_problem(D_HEAD);
    assert_int_equal(count_copies(&problem), 0);
    const uint64_t rows = sizeof(float) * HEADS * BATCH * QUERIES;
    assert_in_range(plan_backward_size(&problem), 2 * rows, 2 * rows + 1024);
}

TEST(rows_that_are_no_whole_aligned_chunks_are_copied) {
    problem_t problem = make_problem(D_HEAD);
    problem.params.k = memory + 2;
    assert_true(plan_backward(&problem).copies[BACKWARD_K].is_copied);
    assert_int_equal(count_copies(&problem), 1);
    problem.params.v_stride.seq += 3;
    problem.gradients.d_o = memory + 8;
    assert_int_equal(count_copies(&problem), 3);
    problem = make_problem(50);
    assert_int_equal(count_copies(&problem), 4);
    assert_int_equal(plan_backward(&problem).copies[BACKWARD_Q].to.stride.head, 56);
}

TEST(tensors_of_other_types_are_copied) {
    problem_t problem = make_problem(D_HEAD);
    problem.params.o_dtype = FLASH_DTYPE_FP32;
    assert_true(plan_backward(&problem).copies[BACKWARD_D_O].is_copied);
    problem.wide_q = (wide_q_t){memory, dense(QUERIES, HEADS, D_HEAD), true};
    const backward_plan_t plan = plan_backward(&problem);
    assert_true(plan.copies[BACKWARD_Q].is_copied);
    assert_ptr_equal(plan.copies[BACKWARD_Q].from.data, memory);
    assert_int_equal(plan.copies[BACKWARD_Q].from.dtype, FLASH_DTYPE_FP32);
    assert_int_equal(plan.copies[BACKWARD_Q].to.dtype, FLASH_DTYPE_BF16);
}

/* A part of the workspace. */
typedef struct part {
    const char *begin;
    uint64_t size;
} part_t;

static void check_parts(const part_t *parts, int count, const char *begin, uint64_t size) {
    for (int i = 0; i < count; i++) {
        assert_int_equal((uintptr_t)parts[i].begin % 256, 0);
        assert_true(parts[i].begin >= begin);
        assert_true(parts[i].begin + parts[i].size <= begin + size);
        for (int j = 0; j < i; j++)
            assert_true(parts[j].begin + parts[j].size <= parts[i].begin);
    }
}

/* Parts lie one behind the other at whatever address the workspace begins, and the rest is what the
 * caller gave beyond the plan's own bytes. */
TEST(parts_of_the_workspace_are_apart) {
    enum { REST = 1000 };
    float d_sinks[HEADS];
    for (int shift = 0; shift < 300; shift += 7) {
        problem_t problem = make_problem(50);
        problem.gradients.d_sinks = d_sinks;
        const backward_plan_t plan = plan_backward(&problem);
        const uint64_t rows = sizeof(float) * HEADS * BATCH * QUERIES;
        problem.workspace = memory + shift;
        problem.workspace_size = plan.size + REST;
        const char *sinks = (const char *)plan_backward_place(&plan, &problem);
        const part_t parts[] = {
            {(const char *)problem.gradients.row_d, rows},
            {(const char *)problem.gradients.row_log_sum, rows},
            {sinks, sizeof(float) * HEADS * (uint64_t)plan.n_sink_places},
            {problem.params.q, BATCH * QUERIES * HEADS * 56 * 2},
            {problem.params.k, BATCH * KEYS * HEADS_KV * 56 * 2},
            {problem.params.v, BATCH * KEYS * HEADS_KV * 56 * 2},
            {problem.gradients.d_o, BATCH * QUERIES * HEADS * 56 * 2},
            {problem.workspace, REST},
        };
        check_parts(parts, sizeof parts / sizeof parts[0], memory + shift, plan.size + REST);
        assert_true(problem.workspace_size >= REST);
        assert_int_equal(problem.params.q_stride.seq, HEADS * 56);
    }
}

TEST(sizes_that_overflow_are_too_large_for_all) {
    problem_t problem = make_problem(50);
    problem.gradients.n_rows = INT64_MAX / 2;
    assert_true(plan_backward_size(&problem) == UINT64_MAX);
}
