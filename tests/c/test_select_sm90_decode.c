/*
 * Which problems go to SM90_DECODE: too many rows for SM80_DECODE, too few for SM90.
 */
#include "selection.h"

TEST(chunks_over_long_caches_are_cut_into_pieces) {
    static const struct {
        int32_t batch, seqlen_q, seqlen_k, B_r;
    } cases[] = {
        {1, 128, 8192, 128}, {8, 16, 4096, 64},  {1, 9, 8192, 64},
        {1, 300, 8192, 128}, {32, 16, 4096, 64}, {4, 64, 2048, 128},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int32_t features = 0; features < 32; features++) {
            const problem_t p =
                chunk_problem(cases[i].batch, cases[i].seqlen_q, cases[i].seqlen_k, features);
            const flash_config_t *config = &selected(&p, &hopper)->config;
            assert_int_equal(config->arch, FLASH_ARCH_SM90_DECODE);
            assert_int_equal(config->B_r, cases[i].B_r);
            assert_int_equal(selected(&p, &ampere)->config.arch, FLASH_ARCH_SM80);
            assert_int_equal(selected(&p, &blackwell)->config.arch, FLASH_ARCH_SM80);
        }
}

TEST(chunks_over_caches_of_e4m3_are_cut_too) {
    static const int32_t types[] = {FLASH_DTYPE_FP16, FLASH_DTYPE_BF16};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        problem_t p = chunk_problem(1, 128, 8192, FLASH_FEATURE_CAUSAL);
        p.dtype = p.params.v_dtype = FLASH_DTYPE_E4M3;
        p.params.q_dtype = p.params.o_dtype = types[i];
        const flash_config_t *config = &selected(&p, &hopper)->config;
        assert_int_equal(config->arch, FLASH_ARCH_SM90_DECODE);
        assert_int_equal(config->dtype, FLASH_DTYPE_E4M3);
        assert_int_equal(config->B_r, 128);
    }
}

/* Rows of SM90_DECODE have one head dimension. */
TEST(chunks_with_a_d_head_v_are_cut_too) {
    static const int32_t cases[][3] = {{64, 128, 128}, {128, 64, 128}, {128, 256, 256}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        problem_t p = chunk_problem(1, 128, 8192, FLASH_FEATURE_CAUSAL);
        p.params.d_head = cases[i][0];
        p.params.d_head_v = cases[i][1];
        const flash_config_t *config = &selected(&p, &hopper)->config;
        assert_int_equal(config->arch, FLASH_ARCH_SM90_DECODE);
        assert_int_equal(config->d_head, cases[i][2]);
    }
}

/* The same row, named by its configuration, serves problems for which it is not chosen. */
TEST(a_row_that_is_not_chosen_serves_all_the_same) {
    const problem_t few = chunk_problem(1, 128, 8192, 0), many = chunk_problem(1, 4096, 4096, 0);
    assert_int_equal(selected(&many, &hopper)->config.arch, FLASH_ARCH_SM90);
    assert_success(select_check(selected(&few, &hopper), &many, &hopper));
}

static void check_no_chunk(const problem_t *problem, const char *words) {
    const problem_t good = chunk_problem(1, 128, 8192, FLASH_FEATURE_VARLEN);
    const flash_kernel_t *kernel = selected(&good, &hopper);
    assert_int_equal(kernel->config.arch, FLASH_ARCH_SM90_DECODE);
    assert_refused(select_check(kernel, problem, &hopper), FLASH_ERROR_UNSUPPORTED, words);
    assert_int_not_equal(selected(problem, &hopper)->config.arch, FLASH_ARCH_SM90_DECODE);
}

TEST(what_sm90_decode_cannot_read_goes_to_others) {
    static const int32_t on_device[4];
    const problem_t good = chunk_problem(1, 128, 8192, FLASH_FEATURE_VARLEN);
    problem_t p;
    p = good, p.params.q = (const void *)(uintptr_t)8, check_no_chunk(&p, "16-byte aligned rows");
    p = good, p.params.q_stride.head = 132, check_no_chunk(&p, "16-byte aligned rows");
    p = good, p.params.k = (const void *)(uintptr_t)8, check_no_chunk(&p, "16-byte aligned addr");
    p = good, p.params.v_stride.seq = 1028, check_no_chunk(&p, "multiples of 16 bytes");
    p = good, p.params.d_head = p.params.d_head_v = 124, check_no_chunk(&p, "16-byte aligned rows");
    p = good, p.batch_invariant = true, p.params.cu_seqlens_q = on_device;
    check_no_chunk(&p, "FLASH_FLAG_BATCH_INVARIANT");
    p = good, p.params.o = (void *)(uintptr_t)2, p.params.o_stride.head = 131;
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90_DECODE);
}

TEST(batch_invariant_chunks_take_one_row_in_every_batch) {
    problem_t p = chunk_problem(1, 128, 8192, FLASH_FEATURE_VARLEN);
    p.batch_invariant = true;
    const flash_kernel_t *kernel = selected(&p, &hopper);
    assert_int_equal(kernel->config.arch, FLASH_ARCH_SM90_DECODE);
    for (p.params.batch = 1; p.params.batch <= 3000; p.params.batch *= 7)
        assert_ptr_equal(selected(&p, &hopper), kernel);
}

/* Only the bounds of lengths count, not lengths that only the device knows. */
TEST(lengths_on_the_device_do_not_change_the_choice) {
    static const int32_t on_device[9];
    problem_t p = chunk_problem(8, 16, 4096, FLASH_FEATURE_VARLEN);
    const flash_kernel_t *kernel = selected(&p, &hopper);
    p.params.seqused_k = on_device;
    assert_ptr_equal(selected(&p, &hopper), kernel);
    p.params.cu_seqlens_q = p.params.seqused_q = on_device;
    assert_ptr_equal(selected(&p, &hopper), kernel);
}

int main(void) {
    return has_cuda_kernels() ? run_all_tests(NULL, NULL) : SKIPPED_BY_CTEST;
}
