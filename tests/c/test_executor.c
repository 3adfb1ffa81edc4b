/*
 * The tasks of a call may run on the call's own executor, or on a team of threads that are all
 * inside one operation. These tests also run under ThreadSanitizer.
 */
#define _GNU_SOURCE
#include "support.h"

#include <pthread.h>
#include <stdatomic.h>

#define INVALID FLASH_ERROR_INVALID_ARGUMENT

static const sizes_t SHARED = {
    .batch = 2, .seqlen_q = 150, .seqlen_k = 150, .n_heads = 4, .n_heads_kv = 4, .d_head = 32};

/* ---- An executor of the call ---- */

typedef struct counts {
    int n_runs;
    int32_t most_tasks;
} counts_t;

static void count_and_run(void *context, int32_t n_tasks, flash_task_t task, void *argument) {
    counts_t *counts = context;
    counts->n_runs++;
    counts->most_tasks = n_tasks > counts->most_tasks ? n_tasks : counts->most_tasks;
    for (int32_t i = n_tasks; i-- > 0;)
        task(argument, i);
}

static void must_not_run(void *context, int32_t n_tasks, flash_task_t task, void *argument) {
    (void)context, (void)n_tasks, (void)task, (void)argument;
    fail_msg("the hook of the process ran a call that has an executor of its own");
}

TEST(an_executor_runs_its_call_alone) {
    counts_t counts = {0};
    flash_executor_t executor = FLASH_EXECUTOR_INIT;
    test_problem_t p, expected;
    problem_create(&expected, SHARED, 1);
    problem_run(&expected);
    problem_create(&p, SHARED, 1);
    executor.run = count_and_run;
    executor.context = &counts;
    executor.n_workers = 3;
    p.args.executor = &executor;
    problem_reallocate_workspace(&p);
    assert_success(flash_set_parallel_for(must_not_run, NULL, 2));
    problem_run(&p);
    assert_success(flash_set_parallel_for(NULL, NULL, 0));
    assert_int_equal(counts.n_runs, 1);
    assert_int_equal(counts.most_tasks, 3);
    assert_true(problem_same_bits(&p, &expected));
    problem_destroy(&p);
    problem_destroy(&expected);
}

/* An executor without run limits the library's threads, whatever hook the process has. */
TEST(an_executor_limits_the_librarys_threads) {
    flash_executor_t executor = FLASH_EXECUTOR_INIT;
    uint64_t all = 0, one = 0;
    test_problem_t p;
    problem_create(&p, SHARED, 2);
    assert_success(flash_set_num_threads(4));
    assert_success(flash_workspace_size(&p.args, NULL, &all));
    executor.n_workers = 1;
    p.args.executor = &executor;
    assert_success(flash_workspace_size(&p.args, NULL, &one));
    assert_true(one < all);
    problem_reallocate_workspace(&p);
    assert_success(flash_set_parallel_for(must_not_run, NULL, 2));
    problem_run(&p);
    problem_check_result(&p);
    assert_success(flash_set_parallel_for(NULL, NULL, 0));
    assert_success(flash_set_num_threads(0));
    problem_destroy(&p);
}

static void check_refused(flash_executor_t executor, flash_status_t status, const char *words) {
    flash_combine_args_t combine = FLASH_COMBINE_ARGS_INIT;
    test_problem_t p;
    problem_create(&p, SMALL, 3);
    p.args.executor = &executor;
    assert_refused(flash_forward(&p.args, NULL, NULL), status, words);
    assert_refused(flash_query_support(&p.args, NULL, NULL, 0), status, words);
    assert_true(problem_is_untouched(&p));
    combine.dtype = FLASH_DTYPE_FP32;
    combine.n_heads = combine.d_head = 1;
    combine.executor = &executor;
    assert_refused(flash_combine(&combine, NULL), status, words);
    problem_destroy(&p);
}

TEST(bad_executors_are_refused) {
    flash_executor_t e = FLASH_EXECUTOR_INIT, good = e;
    good.run = count_and_run;
    good.n_workers = 1;
    e = good, e.n_workers = 0, check_refused(e, INVALID, "executor.n_workers is 0: not 1 ... 4096");
    e = good, e.n_workers = -1, check_refused(e, INVALID, "executor.n_workers is -1");
    e = good, e.n_workers = 4097, check_refused(e, INVALID, "executor.n_workers is 4097");
    e = good, e.run = NULL, e.n_workers = -1, check_refused(e, INVALID, "n_workers is -1: not 0");
    e = good, e.struct_size = 0, check_refused(e, INVALID, "flash_executor_t.struct_size is 0");
}

/* ---- A team ---- */

enum { TEAM_THREADS = 4, TEAM_ROUNDS = 60, MOST_CALLS = 3 };

typedef struct crew {
    flash_team_t team;
    test_problem_t expected;
    atomic_int n_helped; /* rounds, of all helpers */
} crew_t;

static void *help(void *argument) {
    crew_t *crew = argument;
    for (int round = 0; round < TEAM_ROUNDS; round++) {
        flash_team_help(&crew->team);
        atomic_fetch_add(&crew->n_helped, 1);
    }
    return NULL;
}

/* A leader makes 0 ... MOST_CALLS calls per round. */
static void lead(crew_t *crew) {
    flash_executor_t executor = FLASH_EXECUTOR_INIT;
    test_problem_t p;
    executor.run = flash_team_run;
    executor.context = &crew->team;
    executor.n_workers = TEAM_THREADS;
    problem_create(&p, SHARED, 4);
    p.args.executor = &executor;
    problem_reallocate_workspace(&p);
    for (int round = 0; round < TEAM_ROUNDS; round++) {
        for (int call = 0; call < round % (MOST_CALLS + 1); call++) {
            problem_poison(&p);
            problem_run(&p);
            assert_true(problem_same_bits(&p, &crew->expected));
        }
        flash_team_finish(&crew->team);
    }
    problem_destroy(&p);
}

TEST(a_team_shares_the_calls_of_its_leader) {
    static crew_t crew;
    pthread_t threads[TEAM_THREADS - 1];
    problem_create(&crew.expected, SHARED, 4);
    problem_run(&crew.expected);
    assert_success(flash_team_init(&crew.team, TEAM_THREADS));
    for (int i = 0; i < TEAM_THREADS - 1; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, help, &crew), 0);
    lead(&crew);
    for (int i = 0; i < TEAM_THREADS - 1; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(atomic_load(&crew.n_helped), TEAM_ROUNDS * (TEAM_THREADS - 1));
    flash_team_destroy(&crew.team);
    problem_destroy(&crew.expected);
}

TEST(a_team_of_one_needs_no_help) {
    flash_team_t team;
    flash_executor_t executor = FLASH_EXECUTOR_INIT;
    test_problem_t p;
    assert_success(flash_team_init(&team, 1));
    problem_create(&p, SHARED, 5);
    executor.run = flash_team_run;
    executor.context = &team;
    executor.n_workers = 2; /* more tasks than threads */
    p.args.executor = &executor;
    problem_reallocate_workspace(&p);
    problem_run(&p);
    problem_check_result(&p);
    flash_team_finish(&team);
    flash_team_destroy(&team);
    flash_team_destroy(NULL);
    problem_destroy(&p);
}

TEST(bad_teams_are_refused) {
    flash_team_t team;
    assert_refused(flash_team_init(NULL, 1), INVALID, "team is NULL");
    assert_refused(flash_team_init(&team, 0), INVALID, "n_threads is 0");
    assert_refused(flash_team_init(&team, 4097), INVALID, "n_threads is 4097");
}
