/*
 * Which problems go to SM90 on Hopper, to which of its rows, and what it refuses.
 */
#include "cuda/backward/plan_kept_ds.h"
#include "cuda/family.h"
#include "selection.h"

TEST(hopper_takes_the_rows_of_its_own_family) {
    const int32_t all =
        FLASH_FEATURE_CAUSAL | FLASH_FEATURE_WINDOW | FLASH_FEATURE_SOFTCAP | FLASH_FEATURE_VARLEN;
    for (int32_t features = 0; features <= all; features++) {
        const problem_t problem = hopper_problem(120, features);
        assert_int_equal(selected(&problem, &hopper)->config.arch, FLASH_ARCH_SM90);
        assert_int_equal(selected(&problem, &hopper)->config.d_head, 128);
        assert_int_equal(selected(&problem, &ampere)->config.arch, FLASH_ARCH_SM80);
        assert_int_equal(selected(&problem, &blackwell)->config.arch, FLASH_ARCH_SM80);
    }
}

/* Makes a problem whose V and O have a head dimension of their own. */
static problem_t hopper_pair(int32_t d_head, int32_t d_head_v, int32_t features) {
    problem_t problem = hopper_problem(d_head, features);
    flash_params_t *p = &problem.params;
    p->d_head_v = d_head_v;
    p->v_stride = p->o_stride = (flash_strides_t){.batch = (int64_t)2 * p->seqlen_q * d_head_v,
                                                  .seq = (int64_t)2 * d_head_v,
                                                  .head = d_head_v};
    return problem;
}

/* Ragged batches with a window or a softcap have no row of 192/128: that of 192 is as fast. */
static bool has_row_of_192_128(int32_t features) {
    return !(features & FLASH_FEATURE_VARLEN) ||
           !(features & (FLASH_FEATURE_WINDOW | FLASH_FEATURE_SOFTCAP));
}

/* A row of d_head 192 has a d_head_v of 128 or 192; others have one head dimension. */
TEST(hopper_takes_the_smallest_row_for_both_head_dimensions) {
    static const int32_t cases[][4] = {
        /* those of the problem, d_head and d_head_v of the row */
        {192, 128, 192, 128}, {136, 64, 192, 128}, {192, 192, 192, 0}, {192, 136, 192, 0},
        {64, 128, 128, 0},    {128, 64, 128, 0},   {64, 192, 192, 0},  {200, 128, 256, 0},
        {96, 40, 96, 0},      {8, 256, 256, 0}};
    const int32_t all =
        FLASH_FEATURE_CAUSAL | FLASH_FEATURE_WINDOW | FLASH_FEATURE_SOFTCAP | FLASH_FEATURE_VARLEN;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int32_t features = 0; features <= all; features++) {
            const problem_t problem = hopper_pair(cases[i][0], cases[i][1], features);
            const flash_config_t *config = &selected(&problem, &hopper)->config;
            assert_int_equal(config->arch, FLASH_ARCH_SM90);
            assert_int_equal(config->d_head, cases[i][2]);
            assert_int_equal(config->d_head_v, has_row_of_192_128(features) ? cases[i][3] : 0);
        }
}

TEST(a_row_serves_no_more_than_its_head_dimensions) {
    const problem_t pair = hopper_pair(192, 128, 0);
    const flash_kernel_t *kernel = selected(&pair, &hopper);
    const problem_t narrow = hopper_pair(8, 8, 0), wide = hopper_pair(200, 128, 0);
    const problem_t wide_v = hopper_pair(192, 136, 0), odd = hopper_pair(192, 124, 0);
    assert_success(select_check(kernel, &narrow, &hopper));
    assert_refused(select_check(kernel, &wide, &hopper), FLASH_ERROR_UNSUPPORTED, "d_head. ");
    assert_refused(select_check(kernel, &wide_v, &hopper), FLASH_ERROR_UNSUPPORTED, "d_head_v. ");
    assert_refused(select_check(kernel, &odd, &hopper), FLASH_ERROR_UNSUPPORTED,
                   "d_head_v of V and O, to be multiples of 16 bytes");
}

TEST(the_other_families_say_what_hopper_kernels_need) {
    const problem_t problem = hopper_problem(64, 0);
    const flash_kernel_t *kernel = selected(&problem, &hopper);
    assert_refused(select_check(kernel, &problem, &ampere), FLASH_ERROR_UNSUPPORTED, "9.0");
    assert_refused(select_check(kernel, &problem, &blackwell), FLASH_ERROR_UNSUPPORTED, "9.0");
}

/* Checks that the kernel for Hopper refuses with these words, and that another one serves. */
static void check_tma_refuses(const problem_t *problem, const char *words) {
    const problem_t addressable = hopper_problem(64, 0);
    const flash_kernel_t *kernel = selected(&addressable, &hopper);
    assert_refused(select_check(kernel, problem, &hopper), FLASH_ERROR_UNSUPPORTED, words);
    assert_int_equal(selected(problem, &hopper)->config.arch, FLASH_ARCH_SM80);
}

TEST(what_tma_cannot_address_goes_to_sm80) {
    const problem_t good = hopper_problem(64, 0);
    problem_t p;
    p = good, p.params.q = (const void *)(uintptr_t)8, check_tma_refuses(&p, "16-byte aligned");
    p = good, p.params.v = (const void *)(uintptr_t)2, check_tma_refuses(&p, "16-byte aligned");
    p = good, p.params.o = (void *)(uintptr_t)8, check_tma_refuses(&p, "16-byte aligned");
    p = good, p.params.o_stride.seq = 131, check_tma_refuses(&p, "multiples of 16 bytes");
    p = good, p.params.d_head = p.params.d_head_v = 60,
    check_tma_refuses(&p, "d_head elements of a row of Q and K");
    p = good, p.params.k_stride.head = 68, check_tma_refuses(&p, "multiples of 16 bytes");
    p = good, p.params.q_stride.seq = 129, check_tma_refuses(&p, "multiples of 16 bytes");
    p = good, p.params.v_stride.batch = 4, check_tma_refuses(&p, "multiples of 16 bytes");
    p = good, p.params.q_stride.seq = (int64_t)1 << 39, check_tma_refuses(&p, "2^40");
    p = good, p.params.q_stride.seq = -8, check_tma_refuses(&p, "2^40");
}

/* O of fp32 is stored from registers, and needs less than O of 16 bits. */
TEST(an_o_of_fp32_needs_no_tma) {
    const problem_t narrow = hopper_problem(64, 0);
    problem_t wide = narrow, p;
    wide.params.o_dtype = FLASH_DTYPE_FP32;
    assert_ptr_equal(selected(&wide, &hopper), selected(&narrow, &hopper));
    p = wide, p.params.o = (void *)(uintptr_t)8, p.params.o_stride.seq = 130;
    assert_ptr_equal(selected(&p, &hopper), selected(&narrow, &hopper));
    p = wide, p.params.o = (void *)(uintptr_t)4, check_tma_refuses(&p, "8-byte aligned rows");
    p = wide, p.params.o_stride.head = 65, check_tma_refuses(&p, "8-byte aligned rows");
    p = wide, p.params.q_dtype = FLASH_DTYPE_FP32;
    assert_refused(select_check(selected(&narrow, &hopper), &p, &hopper), FLASH_ERROR_UNSUPPORTED,
                   "q.dtype");
}

/* Strides are the largest and smallest, or unused; or there are no keys. */
TEST(what_tma_can_address_stays) {
    problem_t p = hopper_problem(64, 0);
    p.params.q_stride.batch = ((int64_t)1 << 39) - 8;
    p.params.k_stride.batch = p.params.v_stride.head = 0;
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90);
    p.params.batch = 1;
    p.params.v_stride.batch = 3;
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90);
    p.params.seqlen_k = 0;
    p.params.k_stride.head = 1;
    p.params.k = (const void *)(uintptr_t)2;
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90);
}

TEST(more_tiles_than_a_launch_takes_are_refused) {
    problem_t problem = hopper_problem(64, 0);
    for (int32_t features = 0; features <= FLASH_FEATURE_CAUSAL; features++) {
        problem = hopper_problem(64, features);
        const flash_kernel_t *kernel = selected(&problem, &hopper);
        problem.params.n_heads = problem.params.n_heads_kv = INT32_MAX;
        problem.params.batch = problem.params.seqlen_q = 1;
        assert_int_equal(select_check(kernel, &problem, &hopper), FLASH_SUCCESS);
        problem.params.batch = 2;
        assert_refused(select_check(kernel, &problem, &hopper), FLASH_ERROR_UNSUPPORTED, "tiles");
    }
}

/* At d_head 64 there are tiles of 128 and of 192 rows. */
TEST(hopper_takes_tiles_of_fewer_rows_where_there_are_few) {
    problem_t problem = hopper_problem(64, 0);
    problem.params.seqlen_q = 33; /* more than decode kernels take */
    assert_int_equal(selected(&problem, &hopper)->config.B_r, 128);
    problem.params.batch = 1000;
    assert_int_equal(selected(&problem, &hopper)->config.B_r, 128);
    problem.params.seqlen_q = 4096;
    assert_int_equal(selected(&problem, &hopper)->config.B_r, 192);
    problem.batch_invariant = true;
    assert_int_equal(selected(&problem, &hopper)->config.B_r, 192);
}

TEST(a_batch_invariant_choice_looks_at_no_batch) {
    for (int32_t features = 0; features < 8; features++) {
        problem_t problem = hopper_problem(128, features);
        problem.batch_invariant = true;
        const flash_kernel_t *kernel = selected(&problem, &hopper);
        for (problem.params.batch = 1; problem.params.batch < 100; problem.params.batch *= 3)
            assert_ptr_equal(selected(&problem, &hopper), kernel);
    }
}

TEST(what_fills_the_device_is_left_to_forward_kernels) {
    static const int32_t cases[][3] = {/* batch, queries, keys */
                                       {1, 512, 8192}, {1, 2048, 2048},  {4, 512, 512},
                                       {16, 128, 128}, {64, 2048, 4096}, {2, 64, 64}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int32_t features = 0; features < 32; features++) {
            const problem_t p = chunk_problem(cases[i][0], cases[i][1], cases[i][2], features);
            assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90);
        }
}

/* Short queries take the rows in whose tiles query heads lie side by side, also without varlen. */
TEST(short_queries_take_rows_whose_tiles_heads_share) {
    static const int32_t cases[][2] = {/* queries, and whether their row has varlen */
                                       {16, 1},
                                       {64, 1},
                                       {96, 0},
                                       {512, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int32_t features = 0; features < 8; features++) {
            const problem_t p = chunk_problem(300, cases[i][0], 1024, features);
            const flash_config_t *config = &selected(&p, &hopper)->config;
            assert_int_equal(config->arch, FLASH_ARCH_SM90);
            assert_int_equal((config->features & FLASH_FEATURE_VARLEN) != 0, cases[i][1]);
        }
}

/* Tiles that heads share see fewer keys in narrow windows. */
TEST(narrow_windows_take_the_row_for_them) {
    static const int32_t cases[][3] = {/* window_left, query heads of a K/V head, B_r */
                                       {127, 8, 192},
                                       {255, 4, 192},
                                       {127, 1, 128},
                                       {511, 8, 128},
                                       {1023, 8, 128}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        problem_t p = hopper_problem(64, FLASH_FEATURE_WINDOW);
        p.params.batch = 4;
        p.params.seqlen_q = p.params.seqlen_k = 4096;
        p.params.n_heads = 64;
        p.params.group = cases[i][1];
        p.params.n_heads_kv = 64 / p.params.group;
        p.params.window_left = cases[i][0];
        p.params.window_right = 0;
        assert_int_equal(selected(&p, &hopper)->config.B_r, cases[i][2]);
    }
}

/* ---- Gradients ---- */

static problem_t gradients_of_dk(int32_t d_head, int32_t d_head_v, int32_t features) {
    problem_t problem = hopper_pair(d_head, d_head_v, features);
    problem.op = FLASH_OP_BACKWARD_DKV;
    problem.has_output = true;
    problem.params.seqlen_q = problem.params.seqlen_k = 1024;
    problem.gradients.n_rows = (int64_t)problem.params.batch * problem.params.seqlen_q;
    problem.gradients.d_o_stride = problem.params.o_stride;
    return problem;
}

/* A tile of dS is 128 queries and 128 keys, 32 KiB. A causal call has places for the tiles of the
 * first and the last row of them together, and so on: 10 for each two rows, of which 9 are taken.
 */
TEST(rows_of_more_than_64_columns_keep_ds_for_dq) {
    static const int32_t cases[][4] = {
        /* d_head, d_head_v, features, tiles of a head */
        {64, 64, FLASH_FEATURE_CAUSAL, 0},    {128, 128, 0, 64},
        {128, 128, FLASH_FEATURE_CAUSAL, 40}, {192, 128, 0, 64},
        {192, 128, FLASH_FEATURE_CAUSAL, 40}, {192, 128, FLASH_FEATURE_WINDOW, 0},
        {256, 256, FLASH_FEATURE_CAUSAL, 40},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        problem_t problem = gradients_of_dk(cases[i][0], cases[i][1], cases[i][2]);
        if (cases[i][2] & FLASH_FEATURE_CAUSAL)
            problem.params.window_right = 0;
        const flash_kernel_t *kernel = selected(&problem, &hopper);
        assert_int_equal(kernel->config.arch, FLASH_ARCH_SM90);
        assert_int_equal(kernel->config.d_head, cases[i][0]);
        const uint64_t tiles = kernel->function == NULL ? 0 : 4 * (uint64_t)cases[i][3];
        assert_int_equal(plan_kept_ds(kernel, &problem, &hopper).size, tiles * 128 * 128 * 2);
    }
}

TEST(second_kernels_fit_the_device) {
    for (int32_t i = 0; i < kernel_table_count; i++) {
        const flash_kernel_t *kernel = &kernel_table[i];
        if (kernel->config.arch != FLASH_ARCH_SM90 || kernel->dq_of_ds == NULL)
            continue;
        const cuda_block_t block = kernel_op(kernel)->cuda->dq_of_ds_block(&kernel->config);
        assert_true(block.threads <= 1024);
        assert_true(block.shared_bytes <= hopper.shared_memory_per_block);
    }
}

int main(void) {
    return has_cuda_kernels() ? run_all_tests(NULL, NULL) : SKIPPED_BY_CTEST;
}
