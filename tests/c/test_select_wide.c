/*
 * Heads of 257 to 512 columns: which problems go to SM90_WIDE and which to SM80_WIDE, and which are
 * refused.
 */
#include "selection.h"

#include "cuda/decode/plan_decode.h"
#include "cuda/family.h"

enum { WIDEST = 512 };

/* Makes a problem of these head dimensions whose V is not K. */
static problem_t wide_problem(int32_t dtype, int32_t d_head, int32_t d_head_v, int32_t features) {
    problem_t problem = decode_problem(WIDEST, 8, features);
    flash_params_t *p = &problem.params;
    p->v = (const void *)((uintptr_t)p->k + 4096);
    p->d_head = d_head;
    p->d_head_v = d_head_v;
    problem.dtype = p->v_dtype = dtype;
    if (dtype == FLASH_DTYPE_BF16)
        p->q_dtype = p->o_dtype = FLASH_DTYPE_BF16;
    return problem;
}

static void check_choice(const problem_t *problem) {
    const int32_t own_features = FLASH_FEATURE_PAGED | FLASH_FEATURE_BIAS;
    const flash_config_t *config = &selected(problem, &hopper)->config;
    assert_int_equal(config->arch, FLASH_ARCH_SM90_WIDE);
    assert_int_equal(config->dtype, problem->dtype);
    assert_int_equal(config->features & own_features, problem->features & own_features);
}

/* Rows of 32 keys are for blocks of 160 KB and more, for 16 bits and without bias. */
static void check_choice_of_sm80(const problem_t *problem) {
    static const device_t *const devices[] = {&ampere, &blackwell, &small_blackwell};
    const bool is_plain =
        problem->dtype != FLASH_DTYPE_E4M3 && (problem->features & FLASH_FEATURE_BIAS) == 0;
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        const flash_config_t *config = &selected(problem, devices[i])->config;
        const bool is_large = devices[i] != &small_blackwell;
        assert_int_equal(config->arch, FLASH_ARCH_SM80_WIDE);
        assert_int_equal(config->dtype, problem->dtype);
        assert_int_equal(config->features & FLASH_FEATURE_PAGED,
                         problem->features & FLASH_FEATURE_PAGED);
        assert_int_equal(config->B_c, is_plain && is_large ? 32 : 16);
    }
}

static void check_every_length(problem_t problem) {
    for (problem.params.seqlen_q = 1; problem.params.seqlen_q <= 20000;
         problem.params.seqlen_q *= 7) {
        check_choice(&problem);
        check_choice_of_sm80(&problem);
    }
}

TEST(wide_heads_have_kernels) {
    static const int32_t heads[][2] = {{512, 512}, {264, 264}, {320, 512}, {512, 64}, {64, 512}};
    static const int32_t dtypes[] = {FLASH_DTYPE_FP16, FLASH_DTYPE_BF16};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++)
        for (int32_t features = 0; features < 64; features++)
            for (size_t j = 0; j < sizeof dtypes / sizeof dtypes[0]; j++)
                check_every_length(wide_problem(dtypes[j], heads[i][0], heads[i][1], features));
}

TEST(wide_heads_of_e4m3_have_kernels) {
    for (int32_t features = 0; features < 32; features++)
        check_every_length(wide_problem(FLASH_DTYPE_E4M3, WIDEST, WIDEST, features));
}

/* SM90_WIDE adds no bias to keys that it converts. */
TEST(wide_heads_of_e4m3_with_bias_go_to_sm80_wide) {
    const int32_t features = FLASH_FEATURE_VARLEN | FLASH_FEATURE_BIAS;
    const problem_t p = wide_problem(FLASH_DTYPE_E4M3, WIDEST, WIDEST, features);
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM80_WIDE);
    check_choice_of_sm80(&p);
}

TEST(narrower_heads_go_elsewhere) {
    const problem_t p = wide_problem(FLASH_DTYPE_BF16, 256, 256, FLASH_FEATURE_VARLEN);
    assert_int_not_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90_WIDE);
    assert_int_not_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM80_WIDE);
    assert_int_not_equal(selected(&p, &ampere)->config.arch, FLASH_ARCH_SM80_WIDE);
}

TEST(keys_that_tma_cannot_address_go_to_sm80_wide) {
    problem_t p = wide_problem(FLASH_DTYPE_BF16, WIDEST, WIDEST, FLASH_FEATURE_VARLEN);
    p.params.k = (const void *)(uintptr_t)4096;
    p.params.k_stride.seq = 0; /* all keys are the same row */
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM80_WIDE);
}

TEST(values_that_are_columns_of_keys_go_to_sm90_mla) {
    problem_t p = wide_problem(FLASH_DTYPE_BF16, WIDEST, WIDEST, FLASH_FEATURE_VARLEN);
    p.params.v = p.params.k;
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90_MLA);
}

static void check_unserved(const problem_t *problem, const device_t *device, const char *words) {
    const flash_kernel_t *kernel = NULL;
    char reason[SELECT_REASON_SIZE];
    assert_refused(select_kernel(problem, device, &kernel, reason), FLASH_ERROR_UNSUPPORTED, words);
}

TEST(what_no_kernel_of_wide_heads_serves_is_refused) {
    const problem_t good = wide_problem(FLASH_DTYPE_BF16, WIDEST, WIDEST, FLASH_FEATURE_VARLEN);
    problem_t p;
    p = good, p.params.d_head = 520, check_unserved(&p, &hopper, "d_head 520");
    p = good, p.params.d_head = 520, check_unserved(&p, &ampere, "d_head 520");
    p = good, p.params.d_head_v = 514, check_unserved(&p, &ampere, "d_head_v 514");
}

static void check_unfit_on(const device_t *device, const problem_t *problem, const char *words) {
    const problem_t good = wide_problem(FLASH_DTYPE_BF16, WIDEST, WIDEST, FLASH_FEATURE_VARLEN);
    assert_refused(select_check(selected(&good, device), problem, device), FLASH_ERROR_UNSUPPORTED,
                   words);
}

static void check_unfit(const problem_t *problem, const char *words) {
    check_unfit_on(&hopper, problem, words);
}

TEST(rows_that_are_not_aligned_are_refused) {
    const problem_t good = wide_problem(FLASH_DTYPE_BF16, WIDEST, WIDEST, FLASH_FEATURE_VARLEN);
    problem_t p;
    p = good, p.params.d_head_v = 510, check_unfit(&p, "multiple of 4");
    p = good, p.params.d_head = 508, check_unfit(&p, "16-byte aligned");
    p = good, p.params.v_stride.seq += 4, check_unfit(&p, "16");
    p = good, p.params.k = (const void *)(uintptr_t)2, check_unfit(&p, "16");
    p = good, p.params.d_head_v = 508, check_unfit_on(&ampere, &p, "16-byte aligned");
    p = good, p.params.v_stride.seq += 4, check_unfit_on(&ampere, &p, "16-byte aligned");
    p = good, p.params.k = (const void *)(uintptr_t)2, check_unfit_on(&ampere, &p, "16-byte");
}

static decode_plan_t plan_of(const problem_t *problem) {
    const flash_kernel_t *kernel = selected(problem, &hopper);
    return kernel_op(kernel)->cuda->plan(&kernel->config, problem, &hopper);
}

/* The queries of other sequences must not decide whether a sequence is cut. */
TEST(batch_invariant_calls_cut_sequences_of_one_tile_unless_they_are_ragged) {
    problem_t p = wide_problem(FLASH_DTYPE_BF16, WIDEST, WIDEST, FLASH_FEATURE_VARLEN);
    p.batch_invariant = true;
    assert_true(plan_of(&p).splits > 0);
    p.params.seqlen_q = 9; /* of eight heads each: more than 64 rows */
    assert_int_equal(plan_of(&p).splits, 0);
    assert_int_equal(plan_of(&p).slots, 0);
    p.params.seqlen_q = 1;
    make_ragged(&p);
    assert_int_equal(plan_of(&p).splits, 0);
}

int main(void) {
    return has_cuda_kernels() ? run_all_tests(NULL, NULL) : SKIPPED_BY_CTEST;
}
