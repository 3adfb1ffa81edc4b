/*
 * Selection as a pure function: the kernel chosen on described machines, whatever this one is.
 * Links the library's objects, since these functions are hidden.
 */
#include "support.h"

#include "kernel_table.h"
#include "select.h"

static problem_t problem_of(int32_t dtype, int32_t features) {
    problem_t problem;
    memset(&problem, 0, sizeof problem);
    problem.dtype = dtype;
    problem.features = features;
    problem.params.batch = problem.params.n_heads = problem.params.n_heads_kv = 1;
    problem.params.group = 1;
    problem.params.seqlen_q = problem.params.seqlen_k = 512;
    problem.params.d_head = 64;
    return problem;
}

static void check_family(int32_t dtype, uint32_t isa, const char *prefix) {
    const device_t device = {.number = FLASH_DEVICE_CPU, .isa = isa};
    const problem_t problem = problem_of(dtype, FLASH_FEATURE_CAUSAL | FLASH_FEATURE_VARLEN);
    const flash_kernel_t *kernel = NULL;
    char reason[SELECT_REASON_SIZE] = "";
    assert_success(select_kernel(&problem, &device, &kernel, reason));
    assert_memory_equal(kernel->name, prefix, strlen(prefix));
    assert_true(reason[0] != '\0');
    assert_success(select_check(kernel, &problem, &device));
}

static void a_bare_machine_gets_the_reference(void **state) {
    (void)state;
    check_family(FLASH_DTYPE_FP16, 0, "flash_fwd_reference_fp16_");
    check_family(FLASH_DTYPE_BF16, 0, "flash_fwd_reference_bf16_");
    check_family(FLASH_DTYPE_FP32, 0, "flash_fwd_reference_fp32_");
}

#if defined(__x86_64__)
static void the_newest_instruction_set_wins(void **state) {
    const uint32_t both = FLASH_ISA_AVX2 | FLASH_ISA_AVX512;
    (void)state;
    check_family(FLASH_DTYPE_FP16, FLASH_ISA_AVX2, "flash_fwd_avx2_fp16_");
    check_family(FLASH_DTYPE_BF16, FLASH_ISA_AVX2, "flash_fwd_avx2_bf16_");
    check_family(FLASH_DTYPE_FP32, FLASH_ISA_AVX2, "flash_fwd_avx2_fp32_");
    check_family(FLASH_DTYPE_FP16, both, "flash_fwd_avx512_fp16_");
    check_family(FLASH_DTYPE_BF16, both, "flash_fwd_avx512_bf16_");
    check_family(FLASH_DTYPE_FP32, both, "flash_fwd_avx512_fp32_");
}
#endif

/* Each row of the table, asked for a problem that it is not for. */
static void a_row_serves_its_own_problems_only(void **state) {
    const device_t all = {.number = FLASH_DEVICE_CPU, .isa = UINT32_MAX};
    const device_t none = {.number = FLASH_DEVICE_CPU, .isa = 0};
    (void)state;
    for (int32_t i = 0; i < kernel_table_count; i++) {
        const flash_kernel_t *kernel = &kernel_table[i];
        problem_t problem = problem_of(kernel->config.dtype, kernel->config.features);
        assert_success(select_check(kernel, &problem, &all));
        if (kernel->config.arch != FLASH_ARCH_REFERENCE)
            assert_refused(select_check(kernel, &problem, &none), FLASH_ERROR_UNSUPPORTED, "need");
        problem.dtype = kernel->config.dtype % 3 + 1;
        assert_refused(select_check(kernel, &problem, &all), FLASH_ERROR_UNSUPPORTED, "dtype");
        problem.dtype = kernel->config.dtype;
        problem.features = 16;
        assert_refused(select_check(kernel, &problem, &all), FLASH_ERROR_UNSUPPORTED, "features");
    }
}

static void no_kernel_is_a_refusal(void **state) {
    const device_t device = {.number = FLASH_DEVICE_CPU, .isa = 0};
    const problem_t problem = problem_of(FLASH_DTYPE_FP32, 16);
    const flash_kernel_t *kernel = NULL;
    char reason[SELECT_REASON_SIZE];
    (void)state;
    assert_refused(select_kernel(&problem, &device, &kernel, reason), FLASH_ERROR_UNSUPPORTED,
                   "no kernel in this library");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bare_machine_gets_the_reference),
#if defined(__x86_64__)
        cmocka_unit_test(the_newest_instruction_set_wins),
#endif
        cmocka_unit_test(a_row_serves_its_own_problems_only),
        cmocka_unit_test(no_kernel_is_a_refusal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
