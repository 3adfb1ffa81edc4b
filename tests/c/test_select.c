/*
 * Which kernel is chosen on described processors, and what holds of every row of the table. The
 * test_select_*.c have the CUDA families.
 */
#include "selection.h"

#include "config/config.h"

static void check_family(int32_t dtype, uint32_t isa, const char *prefix) {
    const device_t device = {.number = FLASH_DEVICE_CPU, .isa = isa};
    const problem_t problem = problem_of(dtype, FLASH_FEATURE_CAUSAL | FLASH_FEATURE_VARLEN);
    assert_memory_equal(selected(&problem, &device)->name, prefix, strlen(prefix));
}

TEST(a_bare_machine_gets_the_reference) {
    check_family(FLASH_DTYPE_FP16, 0, "flash_fwd_reference_fp16_");
    check_family(FLASH_DTYPE_BF16, 0, "flash_fwd_reference_bf16_");
    check_family(FLASH_DTYPE_FP32, 0, "flash_fwd_reference_fp32_");
    check_family(FLASH_DTYPE_E4M3, 0, "flash_fwd_reference_e4m3_");
}

#if defined(__x86_64__)
static bool has_rows_of(int32_t arch) {
    for (int32_t i = 0; i < kernel_table_count; i++)
        if (kernel_table[i].config.arch == arch)
            return true;
    return false;
}

static bool has_all_cpu_families(void) {
    return has_rows_of(FLASH_ARCH_AVX2) && has_rows_of(FLASH_ARCH_AVX512) &&
           has_rows_of(FLASH_ARCH_AMX) && has_rows_of(FLASH_ARCH_AVX512_BF16);
}

TEST(the_fastest_instruction_set_wins) {
    const uint32_t both = FLASH_ISA_AVX2 | FLASH_ISA_AVX512;
    if (!has_all_cpu_families())
        skip();
    check_family(FLASH_DTYPE_FP16, FLASH_ISA_AVX2, "flash_fwd_avx2_fp16_");
    check_family(FLASH_DTYPE_BF16, FLASH_ISA_AVX2, "flash_fwd_avx2_bf16_");
    check_family(FLASH_DTYPE_FP32, FLASH_ISA_AVX2, "flash_fwd_avx2_fp32_");
    check_family(FLASH_DTYPE_FP16, both, "flash_fwd_avx512_fp16_");
    check_family(FLASH_DTYPE_BF16, both, "flash_fwd_avx512_bf16_");
    check_family(FLASH_DTYPE_FP32, both, "flash_fwd_avx512_fp32_");
    check_family(FLASH_DTYPE_FP16, both | FLASH_ISA_AMX, "flash_fwd_amx_fp16_");
    check_family(FLASH_DTYPE_BF16, both | FLASH_ISA_AMX, "flash_fwd_amx_bf16_");
    check_family(FLASH_DTYPE_FP32, both | FLASH_ISA_AMX, "flash_fwd_avx512_fp32_");
    check_family(FLASH_DTYPE_E4M3, FLASH_ISA_AVX2, "flash_fwd_avx2_e4m3_");
    check_family(FLASH_DTYPE_E4M3, both, "flash_fwd_avx512_e4m3_");
    check_family(FLASH_DTYPE_E4M3, UINT32_MAX, "flash_fwd_avx512_e4m3_");
    check_family(FLASH_DTYPE_LATENT_E4M3, UINT32_MAX, "flash_fwd_avx512_latente4m3_");
    check_family(FLASH_DTYPE_Q8_0, FLASH_ISA_AVX2, "flash_fwd_avx2_q80_");
    check_family(FLASH_DTYPE_Q8_0, UINT32_MAX, "flash_fwd_avx512_q80_");
    check_family(FLASH_DTYPE_Q4_0, UINT32_MAX, "flash_fwd_avx512_q40_");
}

/* Families that multiply pairs of 16 bits leave K and V of two types to the others. */
TEST(k_and_v_of_two_types_have_rows_of_the_type_of_k) {
    const device_t device = {.number = FLASH_DEVICE_CPU, .isa = UINT32_MAX, .dots_pay = true};
    problem_t problem = problem_of(FLASH_DTYPE_BF16, 0);
    const flash_kernel_t *of_pairs = selected(&problem, &device);
    if (!has_all_cpu_families())
        skip();
    assert_int_equal(of_pairs->config.arch, FLASH_ARCH_AMX);
    problem.params.v_dtype = FLASH_DTYPE_Q8_0;
    assert_int_equal(selected(&problem, &device)->config.arch, FLASH_ARCH_AVX512);
    assert_int_equal(selected(&problem, &device)->config.dtype, FLASH_DTYPE_BF16);
    assert_refused(select_check(of_pairs, &problem, &device), FLASH_ERROR_UNSUPPORTED, "v.dtype");
}

/* Products of bf16 pairs are selected only where they are fast, and never before AMX. */
TEST(products_of_pairs_must_pay) {
    device_t device = {.number = FLASH_DEVICE_CPU,
                       .isa = FLASH_ISA_AVX2 | FLASH_ISA_AVX512 | FLASH_ISA_AVX512_BF16};
    const problem_t bf16 = problem_of(FLASH_DTYPE_BF16, 0), fp16 = problem_of(FLASH_DTYPE_FP16, 0);
    const flash_kernel_t *kernel = NULL;
    char reason[SELECT_REASON_SIZE] = "";
    if (!has_all_cpu_families())
        skip();
    assert_success(select_kernel(&bf16, &device, &kernel, reason));
    assert_int_equal(kernel->config.arch, FLASH_ARCH_AVX512);
    assert_non_null(strstr(reason, "slow"));
    device.dots_pay = true;
    assert_int_equal(selected(&bf16, &device)->config.arch, FLASH_ARCH_AVX512_BF16);
    assert_int_equal(selected(&fp16, &device)->config.arch, FLASH_ARCH_AVX512);
    device.isa |= FLASH_ISA_AMX;
    device.dots_pay = false;
    assert_success(select_kernel(&bf16, &device, &kernel, reason));
    assert_int_equal(kernel->config.arch, FLASH_ARCH_AMX);
    assert_null(strstr(reason, "slow"));
}

TEST(a_refused_permission_is_named) {
    const device_t device = {
        .number = FLASH_DEVICE_CPU, .isa = FLASH_ISA_AVX2 | FLASH_ISA_AVX512, .amx_refused = true};
    const problem_t problem = problem_of(FLASH_DTYPE_BF16, 0);
    const flash_kernel_t *kernel = NULL;
    char reason[SELECT_REASON_SIZE] = "";
    if (!has_all_cpu_families())
        skip();
    assert_success(select_kernel(&problem, &device, &kernel, reason));
    assert_memory_equal(kernel->name, "flash_fwd_avx512_", strlen("flash_fwd_avx512_"));
    assert_non_null(strstr(reason, "refused"));
    assert_non_null(strstr(family_lack(&family_amx, &device), "refused"));
}
#endif

TEST(an_absent_family_of_the_environment_is_named) {
    device_t device = {.number = FLASH_DEVICE_CPU, .isa_absent = true};
    const problem_t problem = problem_of(FLASH_DTYPE_BF16, 0);
    const flash_kernel_t *kernel = NULL;
    char reason[SELECT_REASON_SIZE] = "";
    assert_success(select_kernel(&problem, &device, &kernel, reason));
    assert_non_null(strstr(reason, "lacks the family that FLASHATTN_CPU_ISA names"));
    device.isa_absent = false;
    assert_success(select_kernel(&problem, &device, &kernel, reason));
    assert_null(strstr(reason, "FLASHATTN_CPU_ISA"));
}

/* Says whether rows of other families must compute what this row serves, and none do. */
static bool needs_rows_that_are_not_there(const flash_kernel_t *kernel, const problem_t *problem,
                                          const device_t *device) {
    return kernel->config.arch == FLASH_ARCH_MIXED &&
           select_part(problem, device, FAMILY_FORWARD_PART) == NULL;
}

/* Each row of the table is tried for a problem that it is not for. */
TEST(a_row_serves_its_own_problems_only) {
    const device_t best_cpu = {.number = FLASH_DEVICE_CPU, .isa = UINT32_MAX};
    const device_t bare_cpu = {.number = FLASH_DEVICE_CPU, .isa = 0};
    const device_t old_gpu = {.number = FLASH_DEVICE_CUDA, .compute_capability = 75};
    for (int32_t i = 0; i < kernel_table_count; i++) {
        const flash_kernel_t *kernel = &kernel_table[i];
        if (!is_forward_row(kernel))
            continue;
        const bool cuda = kernel->config.arch >= FLASH_ARCH_SM80;
        const device_t all = cuda ? hopper : best_cpu;
        const device_t none = cuda ? old_gpu : bare_cpu;
        problem_t problem = problem_of(kernel->config.dtype, kernel->config.features);
        problem.params.d_head = cuda ? kernel->config.d_head : 64;
        problem.params.d_head_v = cuda ? config_d_head_v(&kernel->config) : 64;
        problem.params.seqlen_q = 1; /* which decode kernels serve, too */
        if (kernel->config.operand_dtype != 0)
            problem.params.q_dtype = kernel->config.operand_dtype;
        set_pages(&problem);
        if (kernel->config.fixed_reference && kernel->config.features & FLASH_FEATURE_BIAS) {
            problem.params.seqlen_q = problem.params.seqlen_k = 4096; /* whole tiles */
            set_mask_of_blocks(&problem);
        }
        if (kernel->config.arch == FLASH_ARCH_MIXED)
            make_ragged(&problem);
        if (needs_rows_that_are_not_there(kernel, &problem, &all))
            continue;
        assert_refused(select_check(kernel, &problem, cuda ? &best_cpu : &hopper),
                       FLASH_ERROR_UNSUPPORTED, "only");
        assert_refused(select_check(kernel, &problem, cuda ? &best_cpu : &hopper),
                       FLASH_ERROR_UNSUPPORTED, cuda ? "on the CPU: " : "on CUDA device 0: ");
        assert_success(select_check(kernel, &problem, &all));
        if (kernel->config.arch != FLASH_ARCH_REFERENCE)
            assert_refused(select_check(kernel, &problem, &none), FLASH_ERROR_UNSUPPORTED, "need");
        problem.dtype = kernel->config.dtype % FLASH_DTYPE_LATENT_E4M3 + 1;
        assert_refused(select_check(kernel, &problem, &all), FLASH_ERROR_UNSUPPORTED, "dtype");
        problem.dtype = kernel->config.dtype;
        problem.features = 128;
        assert_refused(select_check(kernel, &problem, &all), FLASH_ERROR_UNSUPPORTED, "features");
    }
}

TEST(no_kernel_is_a_refusal) {
    const device_t device = {.number = FLASH_DEVICE_CPU, .isa = 0};
    const problem_t problem = problem_of(FLASH_DTYPE_FP32, 128);
    const flash_kernel_t *kernel = NULL;
    char reason[SELECT_REASON_SIZE];
    assert_refused(select_kernel(&problem, &device, &kernel, reason), FLASH_ERROR_UNSUPPORTED,
                   "no kernel in this library");
}

/* Counts the rows of a range, which are of the family, the operation and the type. */
static int32_t count_rows(const family_t *family, int32_t op, int32_t dtype) {
    const kernel_range_t rows = kernel_table_rows(family, op, dtype);
    for (const flash_kernel_t *row = rows.begin; row < rows.end; row++) {
        assert_ptr_equal(row->family, family);
        assert_int_equal(row->config.op, op);
        assert_int_equal(row->config.dtype, dtype);
    }
    return (int32_t)(rows.end - rows.begin);
}

/* The range has every row of the family, the operation and the type, and no other. */
TEST(the_rows_of_a_family_and_a_type_are_together) {
    int32_t found = 0;
    for (int32_t i = 0; i < family_list_count; i++)
        for (int32_t op = 0; op < CONFIG_N_OPS; op++)
            for (int32_t dtype = FLASH_DTYPE_FP16; dtype <= FLASH_DTYPE_Q4_0; dtype++)
                found += count_rows(family_list[i], op, dtype);
    assert_int_equal(found, kernel_table_count);
}

static void check_operation(const family_t *family, int32_t op) {
    const family_op_t *of_op = family->ops[op];
    assert_int_equal(of_op != NULL, family->facts->rows[op] != NULL);
    if (of_op == NULL)
        return;
    assert_non_null(of_op->rank);
    assert_non_null(of_op->calls);
    assert_int_equal(of_op->cpu != NULL, family->facts->on_cpu);
}

TEST(every_family_computes_the_operations_that_its_facts_list) {
    for (int32_t i = 0; i < family_list_count; i++)
        for (int32_t op = 0; op < CONFIG_N_OPS; op++)
            check_operation(family_list[i], op);
}

TEST(a_row_serves_its_own_operation_alone) {
    const device_t device = {.number = FLASH_DEVICE_CPU};
    for (int32_t i = 0; i < kernel_table_count; i++) {
        problem_t problem = {.op = kernel_table[i].config.op + 1,
                             .dtype = kernel_table[i].config.dtype};
        assert_refused(select_check(&kernel_table[i], &problem, &device), FLASH_ERROR_UNSUPPORTED,
                       "does not serve this problem: op");
    }
}

static bool has_gradients_on_cuda(int32_t op) {
    for (int32_t i = 0; i < kernel_table_count; i++)
        if (kernel_table[i].config.op == op && kernel_table[i].config.arch >= FLASH_ARCH_SM80)
            return true;
    return false;
}

TEST(a_library_without_gradients_on_cuda_devices_says_so) {
    static const int32_t ops[] = {FLASH_OP_BACKWARD_DQ, FLASH_OP_BACKWARD_DKV};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        const flash_kernel_t *kernel = NULL;
        problem_t problem = problem_of(FLASH_DTYPE_BF16, FLASH_FEATURE_CAUSAL);
        problem.op = ops[i];
        if (has_gradients_on_cuda(ops[i]))
            skip();
        assert_refused(select_kernel(&problem, &hopper, &kernel, NULL), FLASH_ERROR_UNSUPPORTED,
                       i == 0 ? "no kernel in this library computes gradients (backward_dq) on "
                              : "no kernel in this library computes gradients (backward_dkv) on ");
    }
}
