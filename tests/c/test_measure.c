/*
 * flash_measure(), flash_tuning_format() and flash_set_tuning(), without a GPU.
 */
#include "support.h"

#include <math.h>

enum { MOST_KERNELS = 64 };

/* Finds the rows that serve the problem on this machine. */
static int32_t serving(const flash_forward_args_t *args, const flash_kernel_t **kernels) {
    int32_t count = 0;
    for (int32_t i = 0; i < flash_kernel_count() && count < MOST_KERNELS; i++) {
        const flash_kernel_t *kernel = flash_kernel_at(i);
        if (flash_query_support(args, kernel, NULL, 0) == FLASH_SUCCESS)
            kernels[count++] = kernel;
    }
    assert_true(count > 0);
    return count;
}

/* Grows the workspace to the largest need of all kernels. */
static void provide_workspace(test_problem_t *p, const flash_kernel_t **kernels, int32_t count) {
    uint64_t most = 0;
    for (int32_t i = 0; i < count; i++) {
        uint64_t size = 0;
        assert_success(flash_workspace_size(&p->args, kernels[i], &size));
        most = size > most ? size : most;
    }
    free(p->args.workspace);
    p->args.workspace = malloc((size_t)most);
    p->args.workspace_size = most;
    assert_non_null(p->args.workspace);
}

TEST(kernels_are_timed_and_computed) {
    const flash_kernel_t *kernels[MOST_KERNELS];
    double seconds[MOST_KERNELS];
    test_problem_t p;
    problem_create(&p, SMALL, 1);
    const int32_t count = serving(&p.args, kernels);
    provide_workspace(&p, kernels, count);
    assert_success(flash_measure(&p.args, kernels, count, 4, NULL, seconds));
    for (int32_t i = 0; i < count; i++)
        assert_true(seconds[i] > 0 && isfinite(seconds[i]));
    problem_check_result(&p);
    problem_check_canaries(&p);
    problem_destroy(&p);
}

TEST(bad_measurements_are_refused) {
    const flash_kernel_t *kernels[MOST_KERNELS];
    double seconds[MOST_KERNELS] = {-1};
    test_problem_t p;
    problem_create(&p, SMALL, 1);
    const int32_t count = serving(&p.args, kernels);
    const flash_status_t bad = FLASH_ERROR_INVALID_ARGUMENT;
    assert_refused(flash_measure(&p.args, NULL, 1, 1, NULL, seconds), bad, "kernels is NULL");
    assert_refused(flash_measure(&p.args, kernels, 1, 1, NULL, NULL), bad, "seconds is NULL");
    assert_refused(flash_measure(&p.args, kernels, 0, 1, NULL, seconds), bad, "n_kernels is 0");
    assert_refused(flash_measure(&p.args, kernels, 1, 0, NULL, seconds), bad, "n_launches is 0");
    assert_refused(flash_measure(NULL, kernels, 1, 1, NULL, seconds), bad, "NULL");
    const flash_kernel_t *with_null[2] = {kernels[count - 1], NULL};
    assert_refused(flash_measure(&p.args, with_null, 2, 1, NULL, seconds), bad,
                   "kernels[1] is NULL");
    p.args.workspace_size = 0;
    assert_refused(flash_measure(&p.args, kernels, 1, 1, NULL, seconds),
                   FLASH_ERROR_WORKSPACE_TOO_SMALL, "workspace_size is 0");
    assert_true(problem_is_untouched(&p) && seconds[0] == -1);
    problem_destroy(&p);
}

/* The workspace suffices for the first kernel, and not for a later one. */
TEST(a_workspace_that_does_for_some_kernels_is_refused) {
    static const sizes_t sizes = {
        .batch = 1, .seqlen_q = 300, .seqlen_k = 300, .n_heads = 2, .n_heads_kv = 2, .d_head = 64};
    const flash_kernel_t *kernels[MOST_KERNELS];
    double seconds[MOST_KERNELS] = {-1, -1};
    uint64_t least = UINT64_MAX, most = 0;
    test_problem_t p;
    assert_success(flash_set_num_threads(1));
    problem_create(&p, sizes, 1);
    const int32_t count = serving(&p.args, kernels);
    const flash_kernel_t *pair[2] = {NULL, NULL};
    for (int32_t i = 0; i < count; i++) {
        uint64_t size = 0;
        assert_success(flash_workspace_size(&p.args, kernels[i], &size));
        if (size < least)
            least = size, pair[0] = kernels[i];
        if (size > most)
            most = size, pair[1] = kernels[i];
    }
    provide_workspace(&p, pair, 1);
    if (least == most)
        skip();
    assert_refused(flash_measure(&p.args, pair, 2, 1, NULL, seconds),
                   FLASH_ERROR_WORKSPACE_TOO_SMALL, "workspace_size is");
    assert_true(problem_is_untouched(&p) && seconds[0] == -1);
    assert_success(flash_set_num_threads(0));
    problem_destroy(&p);
}

TEST(a_kernel_of_another_type_is_refused) {
    double seconds = -1;
    flash_config_t config = FLASH_CONFIG_INIT;
    test_problem_t p;
    problem_create(&p, SMALL, 1);
    const flash_kernel_t *first = flash_kernel_at(0);
    assert_success(flash_kernel_config(first, &config));
    assert_int_not_equal(config.dtype, FLASH_DTYPE_FP32);
    assert_refused(flash_measure(&p.args, &first, 1, 1, NULL, &seconds), FLASH_ERROR_UNSUPPORTED,
                   "does not serve this problem: dtype");
    assert_true(problem_is_untouched(&p) && seconds == -1);
    problem_destroy(&p);
}

TEST(an_empty_output_takes_no_time) {
    const flash_kernel_t *kernels[MOST_KERNELS];
    double seconds = -1;
    sizes_t sizes = SMALL;
    test_problem_t p;
    sizes.seqlen_q = 0;
    problem_create(&p, sizes, 1);
    serving(&p.args, kernels);
    assert_success(flash_measure(&p.args, kernels, 1, 3, NULL, &seconds));
    assert_true(seconds == 0);
    problem_destroy(&p);
}

TEST(results_of_the_cpu_are_refused) {
    char text[FLASH_TUNING_TEXT_SIZE] = "untouched";
    const flash_kernel_t *kernel = NULL;
    test_problem_t p;
    problem_create(&p, SMALL, 1);
    assert_success(flash_select_kernel(&p.args, &kernel, NULL, 0));
    const size_t size = sizeof text;
    assert_refused(flash_tuning_format(&p.args, kernel, 1e-3, text, size), FLASH_ERROR_UNSUPPORTED,
                   "device is the CPU");
    assert_refused(flash_tuning_format(&p.args, NULL, 1e-3, text, size),
                   FLASH_ERROR_INVALID_ARGUMENT, "kernel is NULL");
    static const double bad[] = {0, -1, 1e300};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_refused(flash_tuning_format(&p.args, kernel, bad[i], text, size),
                       FLASH_ERROR_INVALID_ARGUMENT, "seconds is");
    assert_string_equal(text, "untouched");
    problem_destroy(&p);
}

TEST(results_are_set_or_refused_whole) {
    assert_success(flash_set_tuning(FLASH_TUNING_HEADER "\n# none yet\n"));
    assert_refused(flash_set_tuning(FLASH_TUNING_HEADER "\nfast\n"), FLASH_ERROR_INVALID_ARGUMENT,
                   "line 2: expected cc= at position 0 of \"fast\"");
    assert_refused(flash_set_tuning("fast"), FLASH_ERROR_INVALID_ARGUMENT, FLASH_TUNING_HEADER);
    assert_success(flash_set_tuning(NULL));
}

/* Results never change what the CPU device does. */
TEST(the_cpu_follows_no_results) {
    const flash_kernel_t *before = NULL, *after = NULL;
    test_problem_t p;
    problem_create(&p, SMALL, 1);
    assert_success(flash_select_kernel(&p.args, &before, NULL, 0));
    assert_success(flash_set_tuning(
        FLASH_TUNING_HEADER
        "\ncc=1 sms=1 dtype=FP32 d_head=8 features=none q=8 k=8 heads=8 ns=1: "
        "REFERENCE (FP32, any, 16, 1): causal+window+softcap+varlen+paged+bias\n"));
    assert_success(flash_select_kernel(&p.args, &after, NULL, 0));
    assert_ptr_equal(before, after);
    assert_success(flash_set_tuning(NULL));
    problem_destroy(&p);
}
