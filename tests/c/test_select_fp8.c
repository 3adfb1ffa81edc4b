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

/* Returns the least d_head of SM90 rows that multiply e4m3, cover the features and have at least
 * that many columns; 0: there is none. */
static int32_t least_row(int32_t d_head, int32_t features) {
    int32_t least = 0;
    for (int32_t i = 0; i < kernel_table_count; i++) {
        const flash_config_t *c = &kernel_table[i].config;
        if (c->arch == FLASH_ARCH_SM90 && c->operand_dtype == FLASH_DTYPE_E4M3 &&
            (features & ~c->features) == 0 && c->d_head >= d_head &&
            (least == 0 || c->d_head < least))
            least = c->d_head;
    }
    return least;
}

static bool has_rows_of(int32_t arch) {
    for (int32_t i = 0; i < kernel_table_count; i++)
        if (kernel_table[i].config.operand_dtype == FLASH_DTYPE_E4M3 &&
            kernel_table[i].config.arch == arch)
            return true;
    return false;
}

static bool has_rows(void) {
    return has_rows_of(FLASH_ARCH_SM90);
}

static bool has_decode_rows(void) {
    return has_rows_of(FLASH_ARCH_SM90_DECODE);
}

/* A chunk of queries of e4m3 over caches of it. */
static problem_t fp8_chunk(int32_t batch, int32_t seqlen_q, int32_t seqlen_k, int32_t features) {
    problem_t problem = chunk_problem(batch, seqlen_q, seqlen_k, features);
    problem.dtype = problem.params.v_dtype = problem.params.q_dtype = FLASH_DTYPE_E4M3;
    problem.params.o_dtype = FLASH_DTYPE_BF16;
    return problem;
}

static void check_row(const problem_t *problem, int32_t arch, int32_t operand_dtype, int32_t B_r) {
    const flash_config_t *config = &selected(problem, &hopper)->config;
    assert_int_equal(config->arch, arch);
    assert_int_equal(config->operand_dtype, operand_dtype);
    assert_int_equal(config->B_r, B_r);
}

TEST(few_queries_of_e4m3_go_to_rows_that_multiply_them) {
    if (!has_decode_rows())
        return;
    static const int32_t cases[][4] = {{1, 128, 8192, 128}, {4, 32, 16384, 128}, {8, 16, 4096, 64}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int32_t features = 0; features < 32; features++) {
            const problem_t p = fp8_chunk(cases[i][0], cases[i][1], cases[i][2], features);
            const bool capped = (features & FLASH_FEATURE_SOFTCAP) != 0;
            check_row(&p, FLASH_ARCH_SM90_DECODE, FLASH_DTYPE_E4M3, capped ? 128 : cases[i][3]);
        }
}

TEST(a_query_of_e4m3_goes_where_others_go) {
    static const device_t *const devices[] = {&ampere, &hopper, &blackwell};
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++)
        for (int32_t features = 0; features < 32; features++) {
            const problem_t p = fp8_chunk(16, 1, 8192, features);
            problem_t halves = p;
            halves.params.q_dtype = FLASH_DTYPE_BF16;
            assert_int_equal(selected(&p, devices[i])->config.arch, FLASH_ARCH_SM80_DECODE);
            assert_ptr_equal(selected(&p, devices[i]), selected(&halves, devices[i]));
        }
}

TEST(prompts_and_ragged_batches_of_e4m3_are_read_from_pages) {
    static const int32_t on_device[9];
    if (!has_decode_rows())
        return;
    const int32_t paged = FLASH_FEATURE_CAUSAL | FLASH_FEATURE_VARLEN | FLASH_FEATURE_PAGED;
    problem_t p = fp8_chunk(1, 2048, 32768, paged);
    check_row(&p, FLASH_ARCH_SM90_DECODE, FLASH_DTYPE_E4M3, 128);
    p = fp8_chunk(8, 512, 4096, paged);
    p.params.cu_seqlens_q = p.params.seqused_k = on_device;
    check_row(&p, FLASH_ARCH_SM90_DECODE, FLASH_DTYPE_E4M3, 128);
}

TEST(what_rows_of_few_queries_of_e4m3_lack_is_named) {
    static const int32_t on_device[9];
    if (!has_decode_rows())
        return;
    flash_kernel_t const *kernel = NULL;
    char reason[SELECT_REASON_SIZE] = "";
    const int32_t paged = FLASH_FEATURE_CAUSAL | FLASH_FEATURE_VARLEN | FLASH_FEATURE_PAGED;
    problem_t p = fp8_chunk(1, 512, 4096, paged | FLASH_FEATURE_BIAS);
    assert_refused(select_kernel(&p, &hopper, &kernel, reason), FLASH_ERROR_UNSUPPORTED, "bias");
    p = fp8_chunk(1, 512, 4096, paged);
    assert_refused(select_kernel(&p, &ampere, &kernel, reason), FLASH_ERROR_UNSUPPORTED, "E4M3");
    p.params.d_head = 192;
    assert_refused(select_kernel(&p, &hopper, &kernel, reason), FLASH_ERROR_UNSUPPORTED, "192");
    p = fp8_chunk(8, 512, 4096, paged);
    p.params.cu_seqlens_q = on_device, p.batch_invariant = true;
    assert_refused(select_kernel(&p, &hopper, &kernel, reason), FLASH_ERROR_UNSUPPORTED,
                   "SM90_DECODE rows would, but with FLASH_FLAG_BATCH_INVARIANT");
    p = fp8_chunk(1, 512, 4096, paged), p.params.k_stride.seq += 8;
    assert_refused(select_kernel(&p, &hopper, &kernel, reason), FLASH_ERROR_UNSUPPORTED,
                   "SM90_DECODE rows would, but TMA needs");
}

/* Up to a d_head of 128 SM90_DECODE has what narrow SM90 rows lack, and is not as wide as others.
 */
TEST(rows_that_multiply_e4m3_take_q_of_it) {
    enum { DECODE_MAX_D_HEAD = 128 };
    static const int32_t outputs[] = {FLASH_DTYPE_FP16, FLASH_DTYPE_BF16, FLASH_DTYPE_FP32};
    static const int32_t features[] = {0, FLASH_FEATURE_CAUSAL,
                                       FLASH_FEATURE_CAUSAL | FLASH_FEATURE_WINDOW,
                                       FLASH_FEATURE_SOFTCAP, FLASH_FEATURE_VARLEN};
    for (size_t j = 0; j < sizeof features / sizeof features[0]; j++)
        for (int32_t d_head = 16; least_row(d_head, features[j]) > 0; d_head += 16)
            for (int i = 0; i < 3; i++) {
                const int32_t least = least_row(d_head, features[j]);
                const bool decodes =
                    has_decode_rows() && d_head <= DECODE_MAX_D_HEAD && least > DECODE_MAX_D_HEAD;
                const problem_t problem = fp8_problem(d_head, outputs[i], features[j]);
                const flash_config_t *config = &selected(&problem, &hopper)->config;
                assert_int_equal(config->operand_dtype, FLASH_DTYPE_E4M3);
                assert_int_equal(config->arch, decodes ? FLASH_ARCH_SM90_DECODE : FLASH_ARCH_SM90);
                assert_int_equal(features[j] & ~config->features, 0);
                assert_true(decodes ? config->d_head <= DECODE_MAX_D_HEAD
                                    : config->d_head == least);
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
    const problem_t biased = fp8_problem(128, FLASH_DTYPE_BF16, FLASH_FEATURE_BIAS);
    const problem_t plain = fp8_problem(128, FLASH_DTYPE_BF16, 0);
    const problem_t wide = fp8_problem(320, FLASH_DTYPE_BF16, 0);
    assert_refused(select_kernel(&wide, &hopper, &kernel, reason), FLASH_ERROR_UNSUPPORTED,
                   "Q E4M3");
    assert_refused(select_kernel(&biased, &hopper, &kernel, reason), FLASH_ERROR_UNSUPPORTED,
                   "bias");
    assert_refused(select_kernel(&plain, &ampere, &kernel, reason), FLASH_ERROR_UNSUPPORTED,
                   "E4M3");
}

/* Up to a d_head of 128 rows of decode have what those of prompts lack. */
TEST(windows_softcap_and_ragged_batches_are_multiplied_too) {
    static const int32_t features[] = {FLASH_FEATURE_CAUSAL | FLASH_FEATURE_WINDOW,
                                       FLASH_FEATURE_SOFTCAP, FLASH_FEATURE_VARLEN};
    if (!has_decode_rows())
        return;
    for (size_t j = 0; j < sizeof features / sizeof features[0]; j++) {
        const problem_t problem = fp8_problem(128, FLASH_DTYPE_BF16, features[j]);
        assert_int_equal(selected(&problem, &hopper)->config.operand_dtype, FLASH_DTYPE_E4M3);
    }
}

TEST(queries_of_e4m3_are_multiplied_in_rows_as_wide_as_installed_ones) {
    static const int32_t d_heads[] = {192, 256};
    for (size_t i = 0; i < sizeof d_heads / sizeof d_heads[0]; i++) {
        const problem_t problem = fp8_problem(d_heads[i], FLASH_DTYPE_BF16, 0);
        flash_kernel_t const *kernel = NULL;
        char reason[SELECT_REASON_SIZE] = "";
        if (least_row(d_heads[i], 0) == d_heads[i])
            check_row(&problem, FLASH_ARCH_SM90, FLASH_DTYPE_E4M3, 128);
        else if (least_row(d_heads[i], 0) == 0)
            assert_refused(select_kernel(&problem, &hopper, &kernel, reason),
                           FLASH_ERROR_UNSUPPORTED, "d_head");
    }
}

TEST(wide_rows_serve_narrow_heads_that_decode_does_not) {
    static const int32_t on_device[9];
    problem_t p = fp8_chunk(8, 512, 4096, FLASH_FEATURE_CAUSAL | FLASH_FEATURE_VARLEN);
    p.params.cu_seqlens_q = p.params.cu_seqlens_k = on_device, p.batch_invariant = true;
    if (least_row(128, FLASH_FEATURE_CAUSAL | FLASH_FEATURE_VARLEN) > 0)
        check_row(&p, FLASH_ARCH_SM90, FLASH_DTYPE_E4M3, 128);
}

int main(void) {
    return has_cuda_kernels() ? run_all_tests(NULL, NULL) : SKIPPED_BY_CTEST;
}
