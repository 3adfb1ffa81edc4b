/*
 * Which ragged batches go to MIXED, with which rows of other families for their parts.
 */
#include "selection.h"

static void check_mixed_choice(const problem_t *p, const device_t *device) {
    const flash_kernel_t *kernel = selected(p, device);
    const bool paged = (p->features & FLASH_FEATURE_PAGED) != 0;
    assert_int_equal(kernel->config.arch, FLASH_ARCH_MIXED);
    assert_int_equal((kernel->config.features & FLASH_FEATURE_PAGED) != 0, paged);
    assert_null(kernel->function);
}

TEST(ragged_batches_with_long_sequences_are_mixed) {
    static const int32_t d_heads[] = {8, 64, 80, 128, 192, 256};
    const device_t *const devices[] = {&ampere, &small_gpu, &hopper, &blackwell, &small_blackwell};
    for (size_t device = 0; device < sizeof devices / sizeof devices[0]; device++)
        for (size_t i = 0; i < sizeof d_heads / sizeof d_heads[0]; i++)
            for (int32_t features = 0; features < 32; features++) {
                problem_t p = mixed_problem(d_heads[i], 4, 2048, features);
                if (!decodes(devices[device], d_heads[i]))
                    assert_int_not_equal(selected(&p, devices[device])->config.arch,
                                         FLASH_ARCH_MIXED);
                else
                    check_mixed_choice(&p, devices[device]);
            }
}

/* Decode kernels serve the whole batch or none of it, or there is only one sequence. */
/* Rows of both parts serve them. */
TEST(mixed_batches_may_have_other_heads_of_v) {
    problem_t p = mixed_problem(192, 4, 2048, FLASH_FEATURE_CAUSAL | FLASH_FEATURE_PAGED);
    p.params.d_head_v = 128;
    check_mixed_choice(&p, &ampere);
}

TEST(other_batches_are_not_mixed) {
    problem_t p = mixed_problem(128, 4, 8, FLASH_FEATURE_CAUSAL);
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM80_DECODE);
    p.params.seqlen_q = 9;
    check_mixed_choice(&p, &ampere);
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90_DECODE);
    p.params.batch = 1;
    assert_int_equal(selected(&p, &ampere)->config.arch, FLASH_ARCH_SM80);
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90_DECODE);
    p.params.batch = 0;
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90);
    p = mixed_problem(128, 33, 2048, 0);
    assert_int_equal(selected(&p, &hopper)->config.arch, FLASH_ARCH_SM90);
}

/* One tile of decode kernels is decoded, or two if a query has more rows. */
TEST(rows_that_are_decoded_follow_from_the_group) {
    for (int32_t group = 1; group <= 32; group++) {
        const problem_t p = mixed_problem(128, group, 2048, FLASH_FEATURE_CAUSAL);
        check_mixed_choice(&p, &hopper);
        assert_int_equal(selected(&p, &hopper)->config.B_r, group <= 16 ? 16 : 32);
    }
}

/* Checks that a row of MIXED refuses with these words, and that another family serves. */
static void check_not_mixed(const problem_t *problem, const char *words) {
    const problem_t good = mixed_problem(64, 4, 2048, 0);
    const flash_kernel_t *kernel = selected(&good, &hopper);
    assert_int_equal(kernel->config.arch, FLASH_ARCH_MIXED);
    assert_refused(select_check(kernel, problem, &hopper), FLASH_ERROR_UNSUPPORTED, words);
    assert_int_not_equal(selected(problem, &hopper)->config.arch, FLASH_ARCH_MIXED);
}

TEST(both_parts_of_a_mixed_batch_need_a_row) {
    const problem_t good = mixed_problem(64, 4, 2048, 0);
    problem_t p;
    p = good, p.params.cu_seqlens_q = NULL, check_not_mixed(&p, "cu_seqlens_q");
    p = good, p.params.group = 33, check_not_mixed(&p, "more rows");
    p = good, p.params.k = (const void *)(uintptr_t)8, check_not_mixed(&p, "no decode kernel");
    p = good, p.params.k_stride.seq = (int64_t)1 << 30, check_not_mixed(&p, "no decode kernel");
    p = good, p.params.n_heads = INT32_MAX, p.params.batch = 2;
    assert_refused(select_check(selected(&good, &hopper), &p, &hopper), FLASH_ERROR_UNSUPPORTED,
                   "no decode kernel");
    /* SM80 serves the part of many queries where TMA cannot store O. */
    p = good, p.params.o = (void *)(uintptr_t)2;
    check_mixed_choice(&p, &hopper);
}

/* A row that the caller names serves what selection gives to others. */
TEST(a_row_of_mixed_serves_every_ragged_batch) {
    problem_t p = mixed_problem(64, 4, 2048, 0);
    const flash_kernel_t *kernel = selected(&p, &hopper);
    for (p.params.batch = 0; p.params.batch <= 1; p.params.batch++)
        for (p.params.seqlen_q = 1; p.params.seqlen_q < 3000; p.params.seqlen_q *= 3)
            assert_success(select_check(kernel, &p, &hopper));
}

TEST(the_reason_names_both_parts_of_a_mixed_batch) {
    const problem_t p = mixed_problem(128, 4, 2048, FLASH_FEATURE_CAUSAL);
    const flash_kernel_t *kernel = NULL;
    char reason[SELECT_REASON_SIZE] = "";
    assert_success(select_kernel(&p, &hopper, &kernel, reason));
    assert_non_null(strstr(reason, "MIXED"));
    assert_non_null(strstr(reason, "queries <= 4 by SM80_DECODE (128, 16, "));
    assert_non_null(strstr(reason, ", more by SM90 (128, "));
    assert_success(select_kernel(&p, &ampere, &kernel, reason));
    assert_non_null(strstr(reason, ", more by SM80 (128, "));
}

/* Neither the batch nor its longest sequence decides about other sequences. */
TEST(batch_invariant_ragged_batches_are_always_mixed) {
    for (int32_t features = 0; features < 32; features++) {
        problem_t p = mixed_problem(128, 4, 1, features);
        p.batch_invariant = true;
        const flash_kernel_t *kernel = selected(&p, &hopper);
        assert_int_equal(kernel->config.arch, FLASH_ARCH_MIXED);
        for (p.params.seqlen_q = 1; p.params.seqlen_q < 9000; p.params.seqlen_q *= 5)
            for (p.params.batch = 1; p.params.batch <= 400; p.params.batch *= 7)
                assert_ptr_equal(selected(&p, &hopper), kernel);
    }
}

/* Makes the part of the sequences of up to `most` queries. */
static problem_t decoded_part(const problem_t *problem, int32_t most) {
    problem_t part = *problem;
    part.params.seqlen_q = part.params.most_queries = most;
    return part;
}

TEST(the_parts_of_a_batch_invariant_batch_take_the_same_rows) {
    problem_t p = mixed_problem(128, 4, 1, FLASH_FEATURE_CAUSAL);
    p.batch_invariant = true;
    const problem_t part = decoded_part(&p, 4);
    const flash_kernel_t *decode = select_part(&part, &hopper, FAMILY_DECODE_PART);
    const flash_kernel_t *forward = select_part(&p, &hopper, FAMILY_FORWARD_PART);
    assert_int_equal(decode->config.arch, FLASH_ARCH_SM80_DECODE);
    assert_int_equal(forward->config.arch, FLASH_ARCH_SM90);
    for (p.params.seqlen_q = 1; p.params.seqlen_q < 9000; p.params.seqlen_q *= 5)
        for (p.params.batch = 1; p.params.batch <= 400; p.params.batch *= 7) {
            const problem_t own = decoded_part(&p, 4);
            assert_ptr_equal(select_part(&own, &hopper, FAMILY_DECODE_PART), decode);
            assert_ptr_equal(select_part(&p, &hopper, FAMILY_FORWARD_PART), forward);
        }
}

static uint64_t workspace_of(const flash_kernel_t *kernel, const problem_t *problem) {
    uint64_t size = 0;
    assert_success(kernel_calls(kernel)->workspace(kernel, problem, &hopper, &size));
    return size;
}

/* The decoded part alone decides, and smaller batches and shorter contexts need no more. */
TEST(the_workspace_of_a_mixed_batch_is_that_of_its_decoded_part) {
    for (int32_t invariant = 0; invariant < 2; invariant++) {
        problem_t p = mixed_problem(128, 4, 2048, FLASH_FEATURE_CAUSAL);
        p.batch_invariant = invariant;
        p.params.batch = 300;
        const flash_kernel_t *kernel = selected(&p, &hopper);
        const problem_t part = decoded_part(&p, 4);
        const uint64_t size = workspace_of(select_part(&part, &hopper, FAMILY_DECODE_PART), &part);
        assert_true(size > 0);
        for (p.params.seqlen_q = 1; p.params.seqlen_q < 9000; p.params.seqlen_q *= 3)
            assert_int_equal(workspace_of(kernel, &p), size);
        for (p.params.batch = 300; p.params.batch > 0; p.params.batch /= 2)
            for (p.params.seqlen_k = 8192; p.params.seqlen_k > 0; p.params.seqlen_k /= 3)
                assert_true(workspace_of(kernel, &p) <= size);
    }
}

TEST(a_mixed_batch_without_its_workspace_is_refused) {
    problem_t p = mixed_problem(128, 4, 2048, FLASH_FEATURE_CAUSAL);
    const flash_kernel_t *kernel = selected(&p, &hopper);
    p.workspace = &p;
    p.workspace_size = workspace_of(kernel, &p);
    assert_success(kernel_calls(kernel)->check_workspace(kernel, &p, &hopper));
    p.workspace_size--;
    assert_refused(kernel_calls(kernel)->check_workspace(kernel, &p, &hopper),
                   FLASH_ERROR_WORKSPACE_TOO_SMALL, "needs");
    assert_refused(kernel_calls(kernel)->launch(kernel, &p, &hopper, NULL),
                   FLASH_ERROR_WORKSPACE_TOO_SMALL, "needs");
}

int main(void) {
    return has_cuda_kernels() ? run_all_tests(NULL, NULL) : SKIPPED_BY_CTEST;
}
