/*
 * Which CUDA family takes a problem whose keys lie in pages or are of e4m3, or that has a bias.
 */
#include "selection.h"

static void check_paged_choice(const problem_t *p, const device_t *device, int32_t arch) {
    const flash_kernel_t *kernel = selected(p, device);
    problem_t contiguous = *p;
    assert_int_equal(kernel->config.arch, arch);
    assert_true((kernel->config.features & FLASH_FEATURE_PAGED) != 0);
    contiguous.features &= ~FLASH_FEATURE_PAGED;
    contiguous.params.pages = (flash_pages_t){0};
    assert_refused(select_check(kernel, &contiguous, device), FLASH_ERROR_UNSUPPORTED,
                   "only in pages");
    assert_refused(select_check(selected(&contiguous, device), p, device), FLASH_ERROR_UNSUPPORTED,
                   "features");
}

TEST(more_rows_over_pages_take_other_families) {
    static const int32_t d_heads[] = {8, 64, 80, 128, 192, 256};
    problem_t few = decode_problem(64, 4, FLASH_FEATURE_VARLEN | FLASH_FEATURE_PAGED);
    for (size_t i = 0; i < sizeof d_heads / sizeof d_heads[0]; i++) {
        const problem_t p = prefill_in_pages(d_heads[i]);
        check_paged_choice(&p, &hopper, FLASH_ARCH_SM90);
        check_paged_choice(&p, &ampere, FLASH_ARCH_SM80);
        check_paged_choice(&p, &small_gpu, FLASH_ARCH_SM80);
        check_paged_choice(&p, &blackwell, FLASH_ARCH_SM80);
    }
    const flash_kernel_t *decode = selected(&few, &hopper);
    few.params.seqlen_q = 9;
    assert_refused(select_check(decode, &few, &hopper), FLASH_ERROR_UNSUPPORTED, "at most 32 rows");
}

/* The size of pages decides how a kernel reads them, and not which kernel does. */
TEST(pages_of_every_size_take_the_same_kernels) {
    static const int32_t page_sizes[] = {1, 3, 8, 16, 19, 24, 48, 64, 256};
    for (size_t i = 0; i < sizeof page_sizes / sizeof page_sizes[0]; i++) {
        problem_t p = prefill_in_pages(128);
        p.params.pages.page_size = page_sizes[i];
        p.params.pages.n_pages = 1000;
        check_paged_choice(&p, &hopper, FLASH_ARCH_SM90);
        p.params.seqlen_q = 128;
        assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90_DECODE);
    }
}

/* Kernels without TMA read pools that TMA cannot address, and one without asynchronous copies those
 * that are not aligned. */
TEST(pools_that_tma_refuses_take_sm80) {
    problem_t p = prefill_in_pages(64);
    p.params.pages.n_pages = 10;
    check_paged_choice(&p, &hopper, FLASH_ARCH_SM90);
    p.params.v_stride.batch += 8; /* no whole number of tokens */
    check_paged_choice(&p, &hopper, FLASH_ARCH_SM80);
    p = prefill_in_pages(64);
    p.params.pages.n_pages = 2;
    p.params.v_stride.seq = (int64_t)1 << 31; /* elements, of 2 bytes */
    p.params.v_stride.batch = p.params.v_stride.seq * p.params.pages.page_size;
    check_paged_choice(&p, &hopper, FLASH_ARCH_SM80);
    p = prefill_in_pages(64);
    p.params.pages.n_pages = 0;
    check_paged_choice(&p, &hopper, FLASH_ARCH_SM80);
    assert_int_equal(selected(&p, &hopper)->config.async_copy, 1);
}

TEST(pools_that_are_not_aligned_take_sm80_without_asynchronous_copies) {
    static const int32_t d_heads[] = {1, 59, 111, 250};
    const device_t *const devices[] = {&ampere, &small_gpu, &hopper, &blackwell, &small_blackwell};
    for (size_t device = 0; device < sizeof devices / sizeof devices[0]; device++)
        for (size_t i = 0; i < sizeof d_heads / sizeof d_heads[0]; i++) {
            problem_t few = decode_problem(d_heads[i], 4, FLASH_FEATURE_PAGED);
            problem_t many = prefill_in_pages(d_heads[i]);
            check_paged_choice(&many, devices[device], FLASH_ARCH_SM80);
            assert_int_equal(selected(&many, devices[device])->config.async_copy, 0);
            assert_int_equal(selected(&few, devices[device])->config.async_copy, 0);
        }
    problem_t p = prefill_in_pages(64);
    p.params.k_stride.seq += 1;
    check_paged_choice(&p, &hopper, FLASH_ARCH_SM80);
    assert_int_equal(selected(&p, &hopper)->config.async_copy, 0);
}

/* Makes a contiguous cache or one in pages, with Q of a 16-bit type. */
static problem_t cache_problem(int32_t d_head, int32_t seqlen_q, int32_t features) {
    problem_t problem = decode_problem(d_head, 4, features);
    problem.dtype = problem.params.v_dtype = FLASH_DTYPE_E4M3;
    problem.params.q_dtype = problem.params.o_dtype = FLASH_DTYPE_BF16;
    problem.params.seqlen_q = seqlen_q;
    return problem;
}

static void check_cache_choice(const problem_t *p, const device_t *device, int32_t arch) {
    const flash_config_t *config = &selected(p, device)->config;
    assert_int_equal(config->arch, arch);
    assert_int_equal(config->dtype, FLASH_DTYPE_E4M3);
    assert_int_equal(config->features & FLASH_FEATURE_PAGED, p->features & FLASH_FEATURE_PAGED);
    assert_true(config->d_head >= p->params.d_head);
}

TEST(caches_of_e4m3_take_every_family) {
    static const int32_t d_heads[] = {16, 64, 80, 96, 128, 192, 256};
    for (size_t i = 0; i < sizeof d_heads / sizeof d_heads[0]; i++)
        for (int32_t features = 0; features < 32; features++) {
            const problem_t few = cache_problem(d_heads[i], 1, features);
            const problem_t many = cache_problem(d_heads[i], 512, features);
            check_cache_choice(&few, &hopper, FLASH_ARCH_SM80_DECODE);
            check_cache_choice(&many, &hopper, FLASH_ARCH_SM90);
            check_cache_choice(&many, &ampere, FLASH_ARCH_SM80);
            check_cache_choice(&many, &small_gpu, FLASH_ARCH_SM80);
            check_cache_choice(&many, &blackwell, FLASH_ARCH_SM80);
        }
}

/* Elements of K and V have one byte, so that alignment for 16 bits does not suffice. */
TEST(caches_that_are_not_aligned_take_sm80) {
    for (int32_t paged = 0; paged <= FLASH_FEATURE_PAGED; paged += FLASH_FEATURE_PAGED) {
        const problem_t good = cache_problem(64, 512, FLASH_FEATURE_VARLEN | paged);
        problem_t p = good;
        p.params.k_stride.seq += 8, check_cache_choice(&p, &hopper, FLASH_ARCH_SM80);
        p = good, p.params.q_stride.head += 8, check_cache_choice(&p, &hopper, FLASH_ARCH_SM90);
        p = good, p.params.v_stride.head += 3, check_cache_choice(&p, &hopper, FLASH_ARCH_SM80);
        p = good, p.params.k = (const void *)(uintptr_t)8;
        check_cache_choice(&p, &hopper, FLASH_ARCH_SM80);
        p = good, p.params.d_head = p.params.d_head_v = 56,
        check_cache_choice(&p, &hopper, FLASH_ARCH_SM80);
        p = good, p.params.seqlen_q = 1, p.params.d_head = p.params.d_head_v = 56;
        check_cache_choice(&p, &hopper, FLASH_ARCH_SM80);
    }
}

TEST(caches_of_e4m3_go_with_types_of_q_and_o) {
    problem_t p = cache_problem(64, 512, 0);
    const flash_kernel_t *kernel = selected(&p, &hopper);
    p.params.o_dtype = FLASH_DTYPE_FP32, assert_ptr_equal(selected(&p, &hopper), kernel);
    p.params.q_dtype = FLASH_DTYPE_FP16, assert_ptr_equal(selected(&p, &hopper), kernel);
    p.params.o_dtype = FLASH_DTYPE_FP16, assert_ptr_equal(selected(&p, &hopper), kernel);
    p.params.o_dtype = FLASH_DTYPE_BF16, assert_ptr_equal(selected(&p, &hopper), kernel);
    p.params.o_dtype = FLASH_DTYPE_E4M3;
    assert_refused(select_check(kernel, &p, &hopper), FLASH_ERROR_UNSUPPORTED, "o.dtype");
    p.params.q_dtype = p.params.o_dtype = FLASH_DTYPE_FP32;
    assert_refused(select_check(kernel, &p, &hopper), FLASH_ERROR_UNSUPPORTED, "q.dtype");
}

/* Checks that a problem's family does not depend on a bias, and that its rows are for one alone. */
static void check_choice_with_bias(const problem_t *plain, const device_t *device) {
    const flash_config_t *without = &selected(plain, device)->config;
    problem_t biased = *plain;
    biased.features |= FLASH_FEATURE_BIAS;
    const flash_config_t *with = &selected(&biased, device)->config;
    assert_int_equal(with->arch, without->arch);
    assert_true((with->features & FLASH_FEATURE_BIAS) != 0);
    assert_true((without->features & FLASH_FEATURE_BIAS) == 0);
}

TEST(a_bias_does_not_change_the_family) {
    const device_t *const devices[] = {&ampere, &hopper, &blackwell};
    const int32_t paged = FLASH_FEATURE_CAUSAL | FLASH_FEATURE_VARLEN | FLASH_FEATURE_PAGED;
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        const problem_t problems[] = {hopper_problem(64, 0),
                                      hopper_problem(120, FLASH_FEATURE_CAUSAL),
                                      hopper_problem(256, FLASH_FEATURE_SOFTCAP),
                                      prefill_in_pages(128),
                                      chunk_problem(1, 128, 8192, FLASH_FEATURE_CAUSAL),
                                      chunk_problem(8, 16, 4096, paged),
                                      decode_problem(64, 4, FLASH_FEATURE_VARLEN),
                                      mixed_problem(128, 4, 2048, FLASH_FEATURE_CAUSAL),
                                      mixed_problem(128, 4, 2048, paged)};
        for (size_t j = 0; j < sizeof problems / sizeof problems[0]; j++)
            check_choice_with_bias(&problems[j], devices[i]);
    }
}

int main(void) {
    return has_cuda_kernels() ? run_all_tests(NULL, NULL) : SKIPPED_BY_CTEST;
}
