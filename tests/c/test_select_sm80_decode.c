/*
 * Which problems of few rows over many keys go to SM80_DECODE, and what it refuses.
 */
#include "selection.h"

static void check_decode_choice(const device_t *device, int32_t d_head, int32_t rows,
                                int32_t features) {
    const problem_t problem = decode_problem(d_head, rows, features);
    const bool paged = (features & FLASH_FEATURE_PAGED) != 0;
    const flash_kernel_t *kernel = selected(&problem, device);
    assert_int_equal((kernel->config.features & FLASH_FEATURE_PAGED) != 0, paged);
    if (decodes(device, d_head)) {
        assert_int_equal(kernel->config.arch, FLASH_ARCH_SM80_DECODE);
        assert_int_equal(kernel->config.d_head, d_head <= 64 ? 64 : d_head <= 128 ? 128 : 256);
        assert_int_equal(kernel->config.B_r, rows <= 8 || d_head > 128 ? 8 : 16);
    } else {
        assert_int_not_equal(kernel->config.arch, FLASH_ARCH_SM80_DECODE);
    }
}

TEST(few_rows_over_many_keys_are_decoded) {
    static const int32_t d_heads[] = {8, 64, 80, 128, 192, 256};
    const device_t *const devices[] = {&ampere, &small_gpu, &hopper, &blackwell, &small_blackwell};
    for (size_t device = 0; device < sizeof devices / sizeof devices[0]; device++)
        for (size_t i = 0; i < sizeof d_heads / sizeof d_heads[0]; i++)
            for (int32_t rows = 1; rows <= 32; rows++)
                for (int32_t features = 0; features < 32; features++)
                    check_decode_choice(devices[device], d_heads[i], rows, features);
}

/* Several queries count as much as several heads. */
TEST(more_rows_are_not_decoded_by_sm80_decode) {
    problem_t problem = decode_problem(128, 8, FLASH_FEATURE_CAUSAL);
    problem.params.seqlen_q = 4;
    assert_int_equal(selected(&problem, &hopper)->config.arch, FLASH_ARCH_SM80_DECODE);
    problem.params.seqlen_q = 5;
    assert_int_equal(selected(&problem, &hopper)->config.arch, FLASH_ARCH_SM90_DECODE);
    assert_int_equal(selected(&problem, &small_gpu)->config.arch, FLASH_ARCH_SM80);
    problem = decode_problem(128, 33, 0);
    assert_int_equal(selected(&problem, &hopper)->config.arch, FLASH_ARCH_SM90_DECODE);
    assert_int_equal(selected(&problem, &ampere)->config.arch, FLASH_ARCH_SM80);
}

/* Checks that the decode kernel refuses with these words, and that another family serves. */
static void check_not_decoded(const problem_t *problem, const char *words) {
    const problem_t good = decode_problem(64, 4, FLASH_FEATURE_VARLEN);
    const flash_kernel_t *kernel = selected(&good, &hopper);
    assert_int_equal(kernel->config.arch, FLASH_ARCH_SM80_DECODE);
    assert_refused(select_check(kernel, problem, &hopper), FLASH_ERROR_UNSUPPORTED, words);
    assert_int_not_equal(selected(problem, &hopper)->config.arch, FLASH_ARCH_SM80_DECODE);
}

TEST(what_decode_kernels_cannot_read_goes_to_others) {
    const problem_t good = decode_problem(64, 4, FLASH_FEATURE_VARLEN);
    problem_t p;
    p = good, p.params.q = (const void *)(uintptr_t)8, check_not_decoded(&p, "16-byte aligned");
    p = good, p.params.k = (const void *)(uintptr_t)2, check_not_decoded(&p, "16-byte aligned");
    p = good, p.params.v = (const void *)(uintptr_t)4, check_not_decoded(&p, "16-byte aligned");
    p = good, p.params.q_stride.head = 68, check_not_decoded(&p, "16-byte aligned");
    p = good, p.params.k_stride.seq = 260, check_not_decoded(&p, "16-byte aligned");
    p = good, p.params.v_stride.batch = 4, check_not_decoded(&p, "16-byte aligned");
    p = good, p.params.d_head = p.params.d_head_v = 60, check_not_decoded(&p, "16-byte aligned");
    p = good, p.params.d_head_v = 60, check_not_decoded(&p, "16-byte aligned");
    p = good, p.params.k_stride.seq = (int64_t)1 << 30, check_not_decoded(&p, "below 2^31 bytes");
    p = good, p.params.v_stride.seq = (int64_t)1 << 30, check_not_decoded(&p, "below 2^31 bytes");
    p = good, p.params.seqlen_q = 9, check_not_decoded(&p, "at most 32 rows");
}

/* O may lie anywhere, and tokens may be 2^31 bytes less a chunk apart. */
TEST(what_decode_kernels_can_read_stays) {
    problem_t p = decode_problem(64, 4, FLASH_FEATURE_VARLEN);
    p.params.o = (void *)(uintptr_t)2;
    p.params.o_stride.head = 67;
    p.params.k_stride.seq = p.params.v_stride.seq = ((int64_t)1 << 30) - 8;
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM80_DECODE);
}

/* Whether a decode kernel serves a ragged batch depends on its longest sequence of queries. */
TEST(batch_invariant_calls_are_decoded_unless_queries_are_ragged) {
    static const int32_t on_device[4];
    problem_t p = decode_problem(64, 4, FLASH_FEATURE_VARLEN);
    p.params.cu_seqlens_q = on_device;
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM80_DECODE);
    p.batch_invariant = true;
    check_not_decoded(&p, "FLASH_FLAG_BATCH_INVARIANT");
    p.params.cu_seqlens_q = NULL;
    p.params.seqused_k = on_device;
    const flash_kernel_t *kernel = selected(&p, &hopper);
    assert_int_equal(kernel->config.arch, FLASH_ARCH_SM80_DECODE);
    for (p.params.batch = 1; p.params.batch <= 3000; p.params.batch *= 7)
        assert_ptr_equal(selected(&p, &hopper), kernel);
}

TEST(more_blocks_than_a_launch_takes_are_refused) {
    problem_t p = decode_problem(64, 1, FLASH_FEATURE_VARLEN);
    const flash_kernel_t *kernel = selected(&p, &hopper);
    p.params.n_heads = p.params.n_heads_kv = INT32_MAX;
    p.params.batch = 1;
    assert_success(select_check(kernel, &p, &hopper));
    p.params.batch = 2;
    assert_refused(select_check(kernel, &p, &hopper), FLASH_ERROR_UNSUPPORTED, "more tiles");
    p = decode_problem(64, 1, FLASH_FEATURE_VARLEN);
    p.batch_invariant = true;
    p.params.batch = 1 << 24;
    p.params.seqlen_k = 33 * 256; /* 33 pieces, for each of 4 heads: 132 multiprocessors */
    assert_refused(select_check(kernel, &p, &hopper), FLASH_ERROR_UNSUPPORTED, "more pieces");
    p.params.seqlen_k = 31 * 256;
    assert_success(select_check(kernel, &p, &hopper));
}

/* Looking up pages costs time, and without pages there is no table. */
TEST(rows_with_pages_serve_pages_alone) {
    const problem_t paged = decode_problem(64, 4, FLASH_FEATURE_VARLEN | FLASH_FEATURE_PAGED);
    const problem_t contiguous = decode_problem(64, 4, FLASH_FEATURE_VARLEN);
    assert_refused(select_check(selected(&paged, &hopper), &contiguous, &hopper),
                   FLASH_ERROR_UNSUPPORTED, "only in pages");
}

int main(void) {
    return has_cuda_kernels() ? run_all_tests(NULL, NULL) : SKIPPED_BY_CTEST;
}
