/*
 * Q, K and V of e4m3 go to rows that multiply them as such, and Q of 16 bits beside such K and V to
 * rows that convert them.
 */
#include "selection.h"

static problem_t fp8_problem(int32_t d_head, int32_t o_dtype, int32_t features) {
    problem_t problem = hopper_problem(d_head, features);
    problem.dtype = problem.params.v_dtype = problem.params.q_dtype = FLASH_DTYPE_E4M3;
    problem.params.o_dtype = o_dtype;
    return problem;
}

static bool has_rows(void) {
    for (int32_t i = 0; i < kernel_table_count; i++)
        if (kernel_table[i].config.operand_dtype == FLASH_DTYPE_E4M3)
            return true;
    return false;
}

TEST(rows_that_multiply_e4m3_take_q_of_it) {
    if (!has_rows())
        return;
    static const int32_t outputs[] = {FLASH_DTYPE_FP16, FLASH_DTYPE_BF16, FLASH_DTYPE_FP32};
    static const int32_t features[] = {0, FLASH_FEATURE_CAUSAL};
    for (int32_t d_head = 16; d_head <= 256; d_head += 16)
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 2; j++) {
                const problem_t problem = fp8_problem(d_head, outputs[i], features[j]);
                const flash_config_t *config = &selected(&problem, &hopper)->config;
                assert_int_equal(config->operand_dtype, FLASH_DTYPE_E4M3);
                assert_true(config->d_head >= d_head);
            }
}

TEST(other_queries_do_not_come_to_them) {
    if (!has_rows())
        return;
    problem_t problem = fp8_problem(128, FLASH_DTYPE_BF16, 0);
    const flash_kernel_t *kernel = selected(&problem, &hopper);
    problem.params.q_dtype = FLASH_DTYPE_BF16;
    assert_refused(select_check(kernel, &problem, &hopper), FLASH_ERROR_UNSUPPORTED, "q.dtype");
}

TEST(what_they_lack_is_named) {
    if (!has_rows())
        return;
    flash_kernel_t const *kernel = NULL;
    char reason[SELECT_REASON_SIZE] = "";
    const problem_t ragged = fp8_problem(128, FLASH_DTYPE_BF16, FLASH_FEATURE_VARLEN);
    const problem_t plain = fp8_problem(128, FLASH_DTYPE_BF16, 0);
    assert_refused(select_kernel(&ragged, &hopper, &kernel, reason), FLASH_ERROR_UNSUPPORTED,
                   "varlen");
    assert_refused(select_kernel(&plain, &ampere, &kernel, reason), FLASH_ERROR_UNSUPPORTED,
                   "E4M3");
}

TEST(without_them_queries_of_e4m3_are_refused_by_their_type) {
    const problem_t problem = fp8_problem(128, FLASH_DTYPE_BF16, 0);
    flash_kernel_t const *kernel = NULL;
    char reason[SELECT_REASON_SIZE] = "";
    if (!has_rows())
        assert_refused(select_kernel(&problem, &hopper, &kernel, reason), FLASH_ERROR_UNSUPPORTED,
                       "Q E4M3");
}

int main(void) {
    return has_cuda_kernels() ? run_all_tests(NULL, NULL) : SKIPPED_BY_CTEST;
}
