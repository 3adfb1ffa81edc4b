/*
 * Latent attention and latent tokens: which go to SM90_MLA, which to SM80_MLA, and which are
 * refused.
 */
#include "selection.h"

/* Makes a problem of one query over many keys of 576 columns, of which V is the first 512. */
static problem_t latent_problem(int32_t rows, int32_t features) {
    problem_t problem = decode_problem(576, rows, features);
    problem.params.d_head_v = 512;
    return problem;
}

/* Makes it of bf16. */
static problem_t latent_problem_of_bf16(int32_t rows, int32_t features) {
    problem_t problem = latent_problem(rows, features);
    problem.dtype = problem.params.v_dtype = FLASH_DTYPE_BF16;
    problem.params.q_dtype = problem.params.o_dtype = FLASH_DTYPE_BF16;
    return problem;
}

/* Makes it over a cache of e4m3. */
static problem_t latent_cache(int32_t rows, int32_t features) {
    problem_t problem = latent_problem(rows, features);
    problem.dtype = problem.params.v_dtype = FLASH_DTYPE_E4M3;
    problem.params.q_dtype = problem.params.o_dtype = FLASH_DTYPE_BF16;
    return problem;
}

/* SM90_MLA adds no bias where it converts K. */
static bool is_for_sm90_mla(const device_t *device, const problem_t *problem) {
    const bool has_bias = (problem->features & FLASH_FEATURE_BIAS) != 0;
    return device->compute_capability == 90 && !(has_bias && problem->dtype == FLASH_DTYPE_E4M3);
}

static void check_latent_choice(const device_t *device, const problem_t *problem) {
    const int32_t rows = problem->params.group;
    const int32_t own_features = FLASH_FEATURE_PAGED | FLASH_FEATURE_BIAS;
    const flash_config_t *config = &selected(problem, device)->config;
    const bool has_long_steps = device->shared_memory_per_block > 128 * 1024;
    assert_int_equal(config->dtype, problem->dtype);
    assert_int_equal(config->features & own_features, problem->features & own_features);
    if (is_for_sm90_mla(device, problem)) {
        assert_int_equal(config->arch, FLASH_ARCH_SM90_MLA);
        return;
    }
    assert_int_equal(config->arch, FLASH_ARCH_SM80_MLA);
    assert_int_equal(config->B_r, rows <= 32 ? 32 : 64);
    assert_int_equal(config->B_c, rows > 32 && has_long_steps ? 32 : 16);
}

TEST(latent_attention_has_kernels_on_every_device) {
    static const int32_t heads[] = {1, 16, 20, 32, 33, 64, 128};
    const device_t *const devices[] = {&ampere, &small_gpu, &hopper, &blackwell, &small_blackwell};
    for (size_t device = 0; device < sizeof devices / sizeof devices[0]; device++)
        for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++)
            for (int32_t features = 0; features < 64; features++) {
                const problem_t problem = latent_problem(heads[i], features);
                const problem_t cache = latent_cache(heads[i], features);
                check_latent_choice(devices[device], &problem);
                check_latent_choice(devices[device], &cache);
            }
}

static void check_not_latent_on(const device_t *device, const problem_t *problem,
                                const char *words) {
    const problem_t good = latent_problem(16, FLASH_FEATURE_VARLEN);
    assert_refused(select_check(selected(&good, device), problem, device), FLASH_ERROR_UNSUPPORTED,
                   words);
}

static void check_not_latent(const problem_t *problem, const char *words) {
    check_not_latent_on(&ampere, problem, words);
    check_not_latent_on(&hopper, problem, words);
}

TEST(what_is_no_latent_attention_is_refused) {
    const problem_t good = latent_problem(16, FLASH_FEATURE_VARLEN);
    problem_t p;
    p = good, p.params.v = (const void *)(uintptr_t)128, check_not_latent(&p, "first columns of K");
    p = good, p.params.v_stride.seq += 8, check_not_latent(&p, "first columns of K");
    p = good, p.params.d_head = 504, check_not_latent(&p, "first columns of K");
    p = good, p.params.d_head_v = 510, check_not_latent(&p, "multiple of 4");
    p = good, p.params.k = p.params.v = (const void *)(uintptr_t)2;
    check_not_latent_on(&ampere, &p, "16-byte aligned");
    p = good, p.params.q_stride.head = 580, check_not_latent_on(&ampere, &p, "16-byte aligned");
    p = good, p.params.d_head = 572, check_not_latent_on(&ampere, &p, "16-byte aligned");
    p = latent_problem(16, FLASH_FEATURE_VARLEN | FLASH_FEATURE_PAGED);
    assert_refused(select_check(selected(&p, &ampere), &good, &ampere), FLASH_ERROR_UNSUPPORTED,
                   "only in pages");
}

/* Elements have one byte, so that alignment for 16 bits does not suffice. */
TEST(latent_caches_of_e4m3_that_are_not_aligned_are_refused) {
    const problem_t good = latent_cache(16, FLASH_FEATURE_VARLEN);
    const flash_kernel_t *kernel = NULL;
    problem_t p;
    kernel = selected(&good, &ampere);
    p = good, p.params.d_head = 568;
    assert_refused(select_check(kernel, &p, &ampere), FLASH_ERROR_UNSUPPORTED, "16-byte aligned");
    p = good, p.params.k_stride.seq += 8, p.params.v_stride.seq += 8;
    assert_refused(select_check(kernel, &p, &ampere), FLASH_ERROR_UNSUPPORTED, "16-byte aligned");
    p = good, p.params.d_head = 560;
    assert_success(select_check(kernel, &p, &ampere));
}

/* Blocks walk parts of a batch whose pieces would leave multiprocessors without work, or would if
 * sequences that are not cut differ in length. There are four K/V heads. */
TEST(batches_that_pieces_do_not_fill_are_walked) {
    static const int32_t on_device[1];
    static const struct {
        int32_t batch, rows, known, unknown;
    } cases[] = {{1, 16, 0, 0},   {4, 16, 0, 0},   {16, 16, 0, 0},  {16, 128, 0, 1},
                 {32, 16, 0, 1},  {33, 16, 0, 1},  {20, 16, 1, 1},  {40, 16, 1, 1},
                 {25, 128, 1, 1}, {32, 128, 1, 1}, {750, 128, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int32_t features = 0; features < 32; features++) {
            problem_t p = latent_problem_of_bf16(cases[i].rows, features);
            problem_t cache = latent_cache(cases[i].rows, features);
            p.params.batch = cache.params.batch = cases[i].batch;
            assert_int_equal(selected(&p, &hopper)->config.persistent, cases[i].known);
            assert_int_equal(selected(&cache, &hopper)->config.persistent, cases[i].known);
            if ((features & FLASH_FEATURE_VARLEN) == 0)
                continue;
            p.params.seqused_k = cache.params.seqused_k = on_device;
            assert_int_equal(selected(&p, &hopper)->config.persistent, cases[i].unknown);
            assert_int_equal(selected(&cache, &hopper)->config.persistent, cases[i].unknown);
        }
}

TEST(batches_that_cannot_be_walked_take_other_rows) {
    problem_t good = latent_problem_of_bf16(128, FLASH_FEATURE_VARLEN), p;
    good.params.batch = 128;
    const flash_kernel_t *kernel = selected(&good, &hopper);
    assert_int_equal(kernel->config.persistent, 1);
    p = good, p.batch_invariant = true;
    assert_refused(select_check(kernel, &p, &hopper), FLASH_ERROR_UNSUPPORTED,
                   "FLASH_FLAG_BATCH_INVARIANT does not allow");
    assert_int_equal(selected(&p, &hopper)->config.persistent, 0);
    p = good, p.params.o_stride.head += 2;
    assert_refused(select_check(kernel, &p, &hopper), FLASH_ERROR_UNSUPPORTED,
                   "four elements of O at a time");
    assert_int_equal(selected(&p, &hopper)->config.persistent, 0);
    p = latent_problem_of_bf16(128, FLASH_FEATURE_VARLEN | FLASH_FEATURE_BIAS),
    p.params.batch = 128;
    assert_int_equal(selected(&p, &hopper)->config.persistent, 0);
}

/* Small tensors are read faster by kernels for any K and V. */
TEST(small_keys_that_are_values_too_take_other_families) {
    const problem_t p = decode_problem(256, 16, FLASH_FEATURE_VARLEN);
    assert_int_equal(selected(&p, &ampere)->config.arch, FLASH_ARCH_SM80_DECODE);
    assert_int_equal(selected(&p, &small_gpu)->config.arch, FLASH_ARCH_SM80);
}

TEST(latent_attention_that_tma_cannot_address_takes_sm80_mla) {
    problem_t p = latent_problem(16, FLASH_FEATURE_VARLEN | FLASH_FEATURE_PAGED);
    p.params.pages.n_pages = 10;
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90_MLA);
    p.params.k_stride.batch += 8; /* no whole number of tokens */
    p.params.v_stride.batch += 8;
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM80_MLA);
    p = latent_cache(16, FLASH_FEATURE_VARLEN | FLASH_FEATURE_PAGED);
    p.params.pages.n_pages = 10;
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90_MLA);
    p.params.k_stride.batch += 16;
    p.params.v_stride.batch += 16;
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM80_MLA);
}

/* The queries of other sequences must not decide which row computes a sequence. */
TEST(batch_invariant_latent_attention_takes_one_row_in_every_batch) {
    static const int32_t on_device[4];
    problem_t p = latent_problem(16, FLASH_FEATURE_VARLEN);
    p.params.cu_seqlens_q = on_device;
    p.params.seqlen_q = 4;
    assert_int_equal(selected(&p, &ampere)->config.B_r, 64);
    p.batch_invariant = true;
    const flash_kernel_t *kernel = selected(&p, &ampere);
    for (p.params.seqlen_q = 1; p.params.seqlen_q <= 3000; p.params.seqlen_q *= 7)
        assert_ptr_equal(selected(&p, &ampere), kernel);
}

static problem_t problem_of_tokens(int32_t rows, int32_t features) {
    problem_t problem = latent_problem(rows, features);
    flash_strides_t stride = {.batch = 656 * 512, .seq = 656};
    if (features & FLASH_FEATURE_PAGED)
        stride.batch = 656 * problem.params.pages.page_size;
    problem.dtype = problem.params.v_dtype = FLASH_DTYPE_LATENT_E4M3;
    problem.params.q_dtype = problem.params.o_dtype = FLASH_DTYPE_BF16;
    problem.params.k_stride = problem.params.v_stride = stride;
    return problem;
}

TEST(what_hopper_cannot_do_with_latent_tokens_is_refused) {
    const problem_t good = problem_of_tokens(16, FLASH_FEATURE_VARLEN);
    const flash_kernel_t *kernel = selected(&good, &hopper);
    problem_t p;
    p = good, p.params.o_dtype = FLASH_DTYPE_FP32, assert_ptr_equal(selected(&p, &hopper), kernel);
    p = good, p.params.q_dtype = p.params.o_dtype = FLASH_DTYPE_FP16;
    assert_refused(select_check(kernel, &p, &hopper), FLASH_ERROR_UNSUPPORTED, "q.dtype");
    p = good, p.params.k_stride.seq = p.params.v_stride.seq = 660;
    assert_refused(select_check(kernel, &p, &hopper), FLASH_ERROR_UNSUPPORTED, "16 bytes");
    p = good, p.params.k = p.params.v = (const void *)(uintptr_t)8;
    assert_refused(select_check(kernel, &p, &hopper), FLASH_ERROR_UNSUPPORTED, "16-byte aligned");
}

/* SM80_MLA has one tile for them that adds a bias. */
TEST(latent_tokens_have_kernels_on_every_device) {
    static const int32_t heads[] = {1, 32, 33, 128};
    const int32_t own_features = FLASH_FEATURE_PAGED | FLASH_FEATURE_BIAS;
    const device_t *const devices[] = {&ampere, &small_gpu, &blackwell, &small_blackwell, &hopper};
    for (size_t device = 0; device < sizeof devices / sizeof devices[0]; device++)
        for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++)
            for (int32_t features = 0; features < 64; features++) {
                const bool has_bias = (features & FLASH_FEATURE_BIAS) != 0;
                const bool is_for_sm90 = devices[device] == &hopper && !has_bias;
                const bool is_small = heads[i] <= 32 && !has_bias && !is_for_sm90;
                const problem_t p = problem_of_tokens(heads[i], features);
                const flash_config_t *config = &selected(&p, devices[device])->config;
                assert_int_equal(config->arch,
                                 is_for_sm90 ? FLASH_ARCH_SM90_MLA : FLASH_ARCH_SM80_MLA);
                assert_int_equal(config->dtype, FLASH_DTYPE_LATENT_E4M3);
                assert_int_equal(config->B_r, is_small ? 32 : 64);
                assert_int_equal(config->features & own_features, features & own_features);
            }
}

/* Rows with bias hide keys in holes of a page table, and of SM90_MLA those that convert K. */
TEST(holes_of_a_page_table_take_rows_that_hide_keys_in_them) {
    const int32_t features = FLASH_FEATURE_VARLEN | FLASH_FEATURE_PAGED;
    problem_t p = problem_of_tokens(128, features);
    const flash_kernel_t *tokens = selected(&p, &hopper);
    p.params.bias.has_page_holes = 1;
    assert_ptr_equal(selected(&p, &hopper), tokens);
    problem_t cache = latent_cache(16, features), in_bf16 = latent_problem(16, features);
    const flash_kernel_t *without = selected(&in_bf16, &hopper);
    cache.params.bias.has_page_holes = in_bf16.params.bias.has_page_holes = 1;
    assert_int_equal(selected(&cache, &hopper)->config.arch, FLASH_ARCH_SM90_MLA);
    assert_int_equal(selected(&in_bf16, &hopper)->config.arch, FLASH_ARCH_SM90_MLA);
    assert_true(selected(&in_bf16, &hopper)->config.features & FLASH_FEATURE_BIAS);
    assert_true(selected(&in_bf16, &ampere)->config.features & FLASH_FEATURE_BIAS);
    assert_true(selected(&cache, &ampere)->config.features & FLASH_FEATURE_BIAS);
    assert_refused(select_check(without, &in_bf16, &hopper), FLASH_ERROR_UNSUPPORTED,
                   "FLASH_FLAG_PAGE_HOLES");
}

TEST(holes_have_rows_of_every_family_on_every_device) {
    static const int32_t d_heads[] = {64, 128, 256};
    const device_t *const devices[] = {&ampere, &small_gpu, &hopper, &blackwell, &small_blackwell};
    for (size_t device = 0; device < sizeof devices / sizeof devices[0]; device++)
        for (size_t i = 0; i < sizeof d_heads / sizeof d_heads[0]; i++)
            for (int32_t seqlen_q = 1; seqlen_q < 3000; seqlen_q *= 6) {
                problem_t p = decode_problem(d_heads[i], 4, FLASH_FEATURE_PAGED);
                p.params.seqlen_q = seqlen_q;
                p.params.bias.has_page_holes = 1;
                const int32_t features = selected(&p, devices[device])->config.features;
                assert_true(features & FLASH_FEATURE_BIAS);
            }
}

int main(void) {
    return has_cuda_kernels() ? run_all_tests(NULL, NULL) : SKIPPED_BY_CTEST;
}
