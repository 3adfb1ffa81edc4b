/*
 * After fork() the child has none of the library's threads, and computes all the same.
 */
#include "child.h"
#include "support.h"

#include <pthread.h>
#include <stdatomic.h>

enum { N_FORKS = 20 };

static const sizes_t SIZES = {
    .batch = 2, .seqlen_q = 150, .seqlen_k = 150, .n_heads = 4, .n_heads_kv = 2, .d_head = 32};

static bool computes_the_same(void *right) {
    test_problem_t p;
    problem_create(&p, SIZES, 31);
    CHECK(flash_forward(&p.args, NULL, NULL) == FLASH_SUCCESS);
    CHECK(problem_same_bits(&p, right));
    CHECK(flash_set_num_threads(2) == FLASH_SUCCESS);
    CHECK(flash_forward(&p.args, NULL, NULL) == FLASH_SUCCESS);
    CHECK(problem_same_bits(&p, right));
    problem_destroy(&p);
    return true;
}

TEST(a_child_computes) {
    test_problem_t right;
    assert_success(flash_set_num_threads(4));
    problem_create(&right, SIZES, 31);
    problem_run(&right);
    check_in_child(computes_the_same, &right);
    test_problem_t again; /* and so does the parent afterwards */
    problem_create(&again, SIZES, 31);
    problem_run(&again);
    assert_true(problem_same_bits(&again, &right));
    problem_destroy(&again);
    problem_destroy(&right);
}

static bool forks_again(void *right) {
    check_in_child(computes_the_same, right);
    return computes_the_same(right);
}

TEST(a_grandchild_computes) {
    test_problem_t right;
    problem_create(&right, SIZES, 31);
    problem_run(&right);
    check_in_child(forks_again, &right);
    problem_destroy(&right);
}

static atomic_bool stop;
static atomic_int n_failures;

static void *keep_calling(void *problem) {
    test_problem_t *p = problem;
    while (!atomic_load(&stop))
        if (flash_forward(&p->args, NULL, NULL) != FLASH_SUCCESS)
            atomic_fetch_add(&n_failures, 1);
    return NULL;
}

TEST(forks_while_another_thread_calls) {
    test_problem_t right, busy;
    pthread_t thread;
#ifdef __SANITIZE_ADDRESS__
    skip(); /* the locks of its own runtime do not survive a fork while another thread holds them */
#endif
    assert_success(flash_set_num_threads(4));
    problem_create(&right, SIZES, 31);
    problem_create(&busy, SIZES, 32);
    problem_run(&right);
    atomic_store(&stop, false);
    assert_int_equal(pthread_create(&thread, NULL, keep_calling, &busy), 0);
    for (int i = 0; i < N_FORKS; i++)
        check_in_child(computes_the_same, &right);
    atomic_store(&stop, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(atomic_load(&n_failures), 0);
    problem_destroy(&busy);
    problem_destroy(&right);
}
