/*
 * The C tests share this: a small valid problem with canaries around its outputs, attention as a
 * double loop to compare with, and cmocka.
 */
#ifndef FLASH_TESTS_SUPPORT_H
#define FLASH_TESTS_SUPPORT_H

#include "flashattn.h"
#include "forward_rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* No machine has this device, and a library without CUDA kernels has no device of its kind. */
enum { ABSENT_CUDA_DEVICE = FLASH_DEVICE_CUDA + 1000 };

/* For assert_refused(): the status with which this library refuses the absent device. */
enum { ABSENT_DEVICE_STATUS = -1 };

/* A problem in fp32 with contiguous tensors that it owns. O and LSE lie between canaries. */
typedef struct test_problem {
    flash_forward_args_t args;
    float *q;
    float *k;
    float *v;
    float *o;
    float *lse;
    size_t o_count;
    size_t lse_count;
} test_problem_t;

typedef struct sizes {
    int64_t batch, seqlen_q, seqlen_k, n_heads, n_heads_kv, d_head;
} sizes_t;

/* The problem of most tests. All its sizes differ, and a K/V head has two query heads. */
extern const sizes_t SMALL;

/* Fills Q, K and V with random numbers, O and LSE with NaN, and allocates the workspace. */
void problem_create(test_problem_t *p, sizes_t sizes, uint32_t seed);
void problem_destroy(test_problem_t *p);

/* Allocates the workspace again after the arguments have changed. */
void problem_reallocate_workspace(test_problem_t *p);

/* Fills O and LSE with NaN. */
void problem_poison(test_problem_t *p);

/* Says whether no element of O or LSE was written since problem_create() or problem_poison(). */
bool problem_is_untouched(const test_problem_t *p);

/* Fails the test if a byte before or after O or LSE was written. */
void problem_check_canaries(const test_problem_t *p);

/* Fails the test unless O and LSE agree with a double loop over the problem's arguments. */
void problem_check_result(const test_problem_t *p);

/* Runs flash_forward() with the library's choice of kernel; fails the test unless it succeeds. */
void problem_run(test_problem_t *p);

/* Says whether O and LSE of two problems have the same bits. */
bool problem_same_bits(const test_problem_t *a, const test_problem_t *b);

/*
 * Defines a test: TEST(name) { ... }. main() runs those of its file in order; a file with more to
 * do has its own main(), which calls run_all_tests(). `state` is cmocka's.
 */
#define TEST(name) TEST_WITH_TEARDOWN(name, NULL)
#define TEST_WITH_TEARDOWN(name, teardown)                                                         \
    static void name(void **state);                                                                \
    __attribute__((constructor)) static void add_##name(void) {                                    \
        add_test((struct CMUnitTest){#name, name, NULL, teardown, NULL});                          \
    }                                                                                              \
    static void name(void **state __attribute__((unused)))

/* Adds tests that are the elements of an initialiser. */
#define ADD_TESTS(...)                                                                             \
    do {                                                                                           \
        const struct CMUnitTest tests_[] = {__VA_ARGS__};                                          \
        for (size_t i_ = 0; i_ < sizeof tests_ / sizeof tests_[0]; i_++)                           \
            add_test(tests_[i_]);                                                                  \
    } while (0)

void add_test(struct CMUnitTest test);

/* Runs the tests of this program between setup and teardown, which may be NULL; returns the exit
 * status. */
int run_all_tests(CMFixtureFunction setup, CMFixtureFunction teardown);

/* Removes the hook and the number of threads, as a teardown. */
int default_threads(void **state);

/* Fails the test unless the call returned this status and the last error contains these words. */
void check_refusal(flash_status_t status, flash_status_t expected, const char *words);

#define assert_success(call)                                                                       \
    do {                                                                                           \
        const flash_status_t status_ = (call);                                                     \
        if (status_ != FLASH_SUCCESS)                                                              \
            fail_msg("%s: %s: %s", #call, flash_status_string(status_), flash_last_error());       \
    } while (0)

#define assert_refused(call, expected, words) check_refusal((call), (expected), (words))

#endif
