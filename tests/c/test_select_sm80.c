/*
 * Which row of SM80 is chosen, on devices without a family of their own.
 */
#include "selection.h"

static void check_cuda_row(int32_t d_head, int32_t features, const char *name) {
    problem_t problem = problem_of(FLASH_DTYPE_BF16, features);
    problem.params.d_head = problem.params.d_head_v = d_head;
    assert_string_equal(selected(&problem, &ampere)->name, name);
}

TEST(the_row_with_the_fewest_features_wins) {
    check_cuda_row(64, 0,
                   "flash_fwd_sm80_bf16_d64_128x128_w4_async_eager_swizzled_load_2_2_2_optsoftmax");
    check_cuda_row(120, 0,
                   "flash_fwd_sm80_bf16_d128_128x64_w4_async_eager_swizzled_load_2_2_2_optsoftmax");
    check_cuda_row(128, FLASH_FEATURE_CAUSAL,
                   "flash_fwd_sm80_bf16_d128_128x64_w4_async_eager_swizzled_load_2_2_2_optsoftmax_"
                   "causal_varlen");
    check_cuda_row(128, FLASH_FEATURE_SOFTCAP,
                   "flash_fwd_sm80_bf16_d128_128x64_w4_async_eager_swizzled_load_2_2_2_optsoftmax_"
                   "causal_window_softcap_varlen");
}

/* Returns the row of the device for another head dimension of V. */
static const flash_config_t *selected_with_d_head_v(problem_t problem, int32_t d_head,
                                                    int32_t d_head_v, const device_t *device) {
    problem.params.d_head = d_head;
    problem.params.d_head_v = d_head_v;
    return &selected(&problem, device)->config;
}

/* The smallest row serves in which both head dimensions fit. */
TEST(head_dimensions_of_k_and_v_may_differ) {
    static const int32_t dims[][3] = {{192, 128, 192}, {128, 192, 192}, {64, 256, 256},
                                      {96, 8, 96},     {8, 96, 96},     {128, 64, 128}};
    const problem_t problem = problem_of(FLASH_DTYPE_BF16, FLASH_FEATURE_CAUSAL);
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        const flash_config_t *config =
            selected_with_d_head_v(problem, dims[i][0], dims[i][1], &ampere);
        assert_int_equal(config->arch, FLASH_ARCH_SM80);
        assert_int_equal(config->d_head, dims[i][2]);
        assert_int_equal(config->async_copy, 1);
    }
}

TEST(unaligned_rows_of_v_load_through_registers) {
    const problem_t problem = problem_of(FLASH_DTYPE_BF16, 0);
    assert_int_equal(selected_with_d_head_v(problem, 64, 36, &ampere)->async_copy, 0);
    assert_int_equal(selected_with_d_head_v(problem, 36, 64, &ampere)->async_copy, 0);
    assert_int_equal(selected_with_d_head_v(problem, 64, 40, &ampere)->async_copy, 1);
}

TEST(d_head_v_above_that_of_a_row_is_refused_by_name) {
    problem_t problem = problem_of(FLASH_DTYPE_BF16, 0);
    const flash_kernel_t *kernel;
    const flash_kernel_t *row = selected(&problem, &ampere);
    problem.params.d_head_v = 72;
    assert_refused(select_check(row, &problem, &ampere), FLASH_ERROR_UNSUPPORTED,
                   "d_head_v. The kernel has dtype BF16");
    problem.params.d_head_v = 520;
    assert_refused(select_kernel(&problem, &ampere, &kernel, NULL), FLASH_ERROR_UNSUPPORTED,
                   "d_head 64, d_head_v 520");
}

TEST(long_sequences_take_small_steps_at_d_head_256) {
    problem_t problem = problem_of(FLASH_DTYPE_FP16, 0);
    problem.params.d_head = problem.params.d_head_v = 256;
    assert_int_equal(selected(&problem, &ampere)->config.B_c, 64);
    problem.params.seqlen_k = 4096;
    assert_int_equal(selected(&problem, &ampere)->config.B_c, 32);
    problem.params.seqlen_k = 512;
    problem.batch_invariant = true;
    assert_int_equal(selected(&problem, &ampere)->config.B_c, 32);
}

TEST(what_is_chosen_fits_a_small_device) {
    static const int32_t d_heads[] = {8, 32, 64, 96, 128, 192, 256};
    for (size_t i = 0; i < sizeof d_heads / sizeof d_heads[0]; i++)
        for (int32_t features = 0; features < 16; features++) {
            problem_t problem = problem_of(FLASH_DTYPE_FP16, features);
            problem.params.d_head = problem.params.d_head_v = d_heads[i];
            selected(&problem, &small_gpu);
        }
}

TEST(unaligned_tensors_load_through_registers) {
    problem_t problem = problem_of(FLASH_DTYPE_FP16, 0);
    assert_int_equal(selected(&problem, &ampere)->config.async_copy, 1);
    const flash_kernel_t *aligned = selected(&problem, &ampere);
    problem.params.k_stride.head = 68;
    assert_int_equal(selected(&problem, &ampere)->config.async_copy, 0);
    assert_refused(select_check(aligned, &problem, &ampere), FLASH_ERROR_UNSUPPORTED,
                   "16-byte aligned");
}

int main(void) {
    return has_cuda_kernels() ? run_all_tests(NULL, NULL) : SKIPPED_BY_CTEST;
}
