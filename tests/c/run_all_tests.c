#include "support.h"

enum { MOST_TESTS = 1024 };

static struct CMUnitTest tests[MOST_TESTS];
static size_t n_tests;

void add_test(struct CMUnitTest test) {
    if (n_tests == MOST_TESTS) {
        fprintf(stderr, "a program has at most %d tests\n", MOST_TESTS);
        exit(1);
    }
    tests[n_tests++] = test;
}

int run_all_tests(CMFixtureFunction setup, CMFixtureFunction teardown) {
    return _cmocka_run_group_tests("tests", tests, n_tests, setup, teardown);
}
