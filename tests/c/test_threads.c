/*
 * Many threads call at once, while the number of threads and the hook change. Every result has the
 * bits of one thread's. These tests also run under ThreadSanitizer.
 */
#define _GNU_SOURCE /* pthread_setattr_default_np */
#include "support.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

/* AddressSanitizer, with which calls take a hundred times as long, looks at memory, and
 * ThreadSanitizer at how threads meet. */
#ifdef __SANITIZE_ADDRESS__
enum { N_ROUNDS = 3, N_CANCELS = 2 };
#else
enum { N_ROUNDS = 12, N_CANCELS = 10 };
#endif
enum { N_CALLERS = 4, N_PROBLEMS = 3 };

/* Many queries; one query over many keys, which are split; and a ragged size between them. */
static const sizes_t SIZES[N_PROBLEMS] = {
    {.batch = 2, .seqlen_q = 150, .seqlen_k = 150, .n_heads = 4, .n_heads_kv = 4, .d_head = 32},
    {.batch = 1, .seqlen_q = 1, .seqlen_k = 3000, .n_heads = 4, .n_heads_kv = 1, .d_head = 32},
    {.batch = 1, .seqlen_q = 33, .seqlen_k = 257, .n_heads = 6, .n_heads_kv = 2, .d_head = 40},
};

static test_problem_t expected[N_PROBLEMS];

/* Computes the results of one thread. */
static int compute_expected(void **state) {
    (void)state;
    assert_success(flash_set_num_threads(1));
    for (int i = 0; i < N_PROBLEMS; i++) {
        problem_create(&expected[i], SIZES[i], (uint32_t)i);
        problem_run(&expected[i]);
        problem_check_result(&expected[i]);
    }
    return 0;
}

static int destroy_expected(void **state) {
    (void)state;
    for (int i = 0; i < N_PROBLEMS; i++)
        problem_destroy(&expected[i]);
    return 0;
}

static void check_all(void) {
    for (int i = 0; i < N_PROBLEMS; i++) {
        test_problem_t p;
        problem_create(&p, SIZES[i], (uint32_t)i);
        problem_run(&p);
        assert_true(problem_same_bits(&p, &expected[i]));
        problem_check_canaries(&p);
        problem_destroy(&p);
    }
}

TEST_WITH_TEARDOWN(any_number_of_threads_gives_the_same_bits, default_threads) {
    static const int32_t n_threads[] = {1, 2, 3, 8, 0};
    for (size_t i = 0; i < sizeof n_threads / sizeof n_threads[0]; i++) {
        assert_success(flash_set_num_threads(n_threads[i]));
        check_all();
    }
}

/* With less workspace than asked for there are fewer threads, and the same bits. */
TEST_WITH_TEARDOWN(less_workspace_gives_the_same_bits, default_threads) {
    for (int i = 0; i < N_PROBLEMS; i++) {
        test_problem_t p;
        uint64_t least;
        assert_success(flash_set_num_threads(1));
        problem_create(&p, SIZES[i], (uint32_t)i);
        least = p.args.workspace_size;
        assert_success(flash_set_num_threads(4));
        problem_reallocate_workspace(&p);
        assert_true(p.args.workspace_size >= least);
        p.args.workspace_size = least;
        problem_run(&p);
        assert_true(problem_same_bits(&p, &expected[i]));
        problem_destroy(&p);
    }
}

/* ---- Several callers. They count failures, because cmocka asserts in its own thread alone. ----
 */

static atomic_int n_failures;
static atomic_bool stop;

static bool call_gives(const test_problem_t *right, test_problem_t *p) {
    return flash_forward(&p->args, NULL, NULL) == FLASH_SUCCESS && problem_same_bits(p, right);
}

static void *caller(void *problems) {
    test_problem_t *p = problems;
    for (int i = 0; i < N_ROUNDS * N_PROBLEMS; i++)
        if (!call_gives(&expected[i % N_PROBLEMS], &p[i % N_PROBLEMS]))
            atomic_fetch_add(&n_failures, 1);
    return NULL;
}

static void run_callers(void *(*meddler)(void *)) {
    static test_problem_t problems[N_CALLERS][N_PROBLEMS];
    pthread_t callers[N_CALLERS], meddling;
    atomic_store(&n_failures, 0);
    atomic_store(&stop, false);
    for (int i = 0; i < N_CALLERS; i++)
        for (int j = 0; j < N_PROBLEMS; j++)
            problem_create(&problems[i][j], SIZES[j], (uint32_t)j);
    assert_int_equal(pthread_create(&meddling, NULL, meddler, NULL), 0);
    for (int i = 0; i < N_CALLERS; i++)
        assert_int_equal(pthread_create(&callers[i], NULL, caller, problems[i]), 0);
    for (int i = 0; i < N_CALLERS; i++)
        assert_int_equal(pthread_join(callers[i], NULL), 0);
    atomic_store(&stop, true);
    assert_int_equal(pthread_join(meddling, NULL), 0);
    for (int i = 0; i < N_CALLERS; i++)
        for (int j = 0; j < N_PROBLEMS; j++)
            problem_destroy(&problems[i][j]);
    assert_int_equal(atomic_load(&n_failures), 0);
}

/* Calls everything that reads while others compute. */
static void *reader(void *unused) {
    while (!atomic_load(&stop)) {
        flash_config_t config = FLASH_CONFIG_INIT;
        if (flash_kernel_config(flash_kernel_at(0), &config) != FLASH_SUCCESS ||
            flash_lookup_kernel(&config) == NULL || flash_num_threads() < 1)
            atomic_fetch_add(&n_failures, 1);
    }
    return unused;
}

TEST_WITH_TEARDOWN(many_callers_at_once, default_threads) {
    assert_success(flash_set_num_threads(3));
    run_callers(reader);
}

static void *thread_setter(void *unused) {
    for (int32_t i = 0; !atomic_load(&stop); i++)
        if (flash_set_num_threads(i % 5) != FLASH_SUCCESS)
            atomic_fetch_add(&n_failures, 1);
    return unused;
}

TEST_WITH_TEARDOWN(the_number_of_threads_changes_meanwhile, default_threads) {
    assert_success(flash_set_num_threads(5));
    run_callers(thread_setter);
}

/* ---- The hook ---- */

typedef struct lender {
    atomic_int n_calls;
    atomic_int n_tasks;
    int32_t n_workers;
    atomic_int n_refused; /* calls with more tasks than workers */
    bool disturbs;        /* cancels its threads, and stops each for a while */
} lender_t;

/* Runs one task after the other, the last first, which is the least that a hook may do. */
static void run_backwards(void *context, int32_t n_tasks, flash_task_t task, void *argument) {
    lender_t *lender = context;
    atomic_fetch_add(&lender->n_calls, 1);
    atomic_fetch_add(&lender->n_tasks, n_tasks);
    if (n_tasks > lender->n_workers || n_tasks < 1)
        atomic_fetch_add(&lender->n_refused, 1);
    for (int32_t i = n_tasks; i-- > 0;)
        task(argument, i);
}

typedef struct unit {
    flash_task_t task;
    void *argument;
    int32_t index;
} unit_t;

static void *run_unit(void *unit) {
    const unit_t *u = unit;
    u->task(u->argument, u->index);
    return NULL;
}

/* Runs each task in its own thread, side by side. */
static void run_in_threads(void *context, int32_t n_tasks, flash_task_t task, void *argument) {
    enum { MOST = 8 };
    lender_t *lender = context;
    pthread_t threads[MOST];
    unit_t units[MOST];
    atomic_fetch_add(&lender->n_calls, 1);
    if (n_tasks > MOST) {
        atomic_fetch_add(&lender->n_refused, 1);
        return;
    }
    for (int32_t i = 0; i < n_tasks; i++) {
        units[i] = (unit_t){task, argument, i};
        if (pthread_create(&threads[i], NULL, run_unit, &units[i]) != 0)
            abort();
        if (lender->disturbs)
            pthread_cancel(threads[i]);
    }
    for (int32_t i = 0; i < 8 * n_tasks && lender->disturbs; i++)
        pthread_kill(threads[i % n_tasks], SIGUSR1);
    for (int32_t i = 0; i < n_tasks; i++)
        pthread_join(threads[i], NULL);
}

static void check_hook(flash_parallel_for_t run, int32_t n_workers) {
    lender_t lender = {.n_workers = n_workers};
    assert_success(flash_set_parallel_for(run, &lender, n_workers));
    assert_int_equal(flash_num_threads(), n_workers);
    check_all();
    assert_success(flash_set_parallel_for(NULL, NULL, 0));
    assert_int_equal(atomic_load(&lender.n_refused), 0);
    if (n_workers > 1)
        assert_true(atomic_load(&lender.n_calls) > 0);
    const int n_calls = atomic_load(&lender.n_calls);
    check_all();
    assert_int_equal(atomic_load(&lender.n_calls), n_calls);
}

TEST_WITH_TEARDOWN(a_hook_gives_the_same_bits, default_threads) {
    check_hook(run_backwards, 1);
    check_hook(run_backwards, 2);
    check_hook(run_backwards, 7);
    check_hook(run_in_threads, 4);
}

static lender_t meddling_lender = {.n_workers = 3};

static void *hook_setter(void *unused) {
    for (int i = 0; !atomic_load(&stop); i++)
        if (flash_set_parallel_for(i % 2 ? run_backwards : NULL, &meddling_lender, 3) !=
            FLASH_SUCCESS)
            atomic_fetch_add(&n_failures, 1);
    return unused;
}

TEST_WITH_TEARDOWN(the_hook_changes_meanwhile, default_threads) {
    assert_success(flash_set_num_threads(4));
    run_callers(hook_setter);
    assert_int_equal(atomic_load(&meddling_lender.n_refused), 0);
}

static void *results_setter(void *unused) {
    for (int i = 0; !atomic_load(&stop); i++)
        if (flash_set_tuning(i % 2 ? FLASH_TUNING_HEADER : NULL) != FLASH_SUCCESS)
            atomic_fetch_add(&n_failures, 1);
    return unused;
}

TEST_WITH_TEARDOWN(results_change_meanwhile, default_threads) {
    run_callers(results_setter);
    assert_success(flash_set_tuning(NULL));
}

/* ---- Cancellation ---- */

/* A thread that calls without end. */
typedef struct endless {
    test_problem_t problem;
    atomic_int n_calls;
} endless_t;

static void *call_endlessly(void *argument) {
    endless_t *endless = argument;
    for (;;) {
        if (flash_forward(&endless->problem.args, NULL, NULL) != FLASH_SUCCESS)
            atomic_fetch_add(&n_failures, 1);
        atomic_fetch_add(&endless->n_calls, 1);
    }
    return NULL;
}

/* The thread is hardly ever between two calls. */
static void cancel_a_caller(endless_t *endless) {
    pthread_t thread;
    void *result;
    atomic_store(&endless->n_calls, 0);
    assert_int_equal(pthread_create(&thread, NULL, call_endlessly, endless), 0);
    while (atomic_load(&endless->n_calls) < 3)
        sched_yield();
    assert_int_equal(pthread_cancel(thread), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_true(result == PTHREAD_CANCELED);
}

static void check_cancelled_callers(void) {
    static endless_t endless;
    atomic_store(&n_failures, 0);
    problem_create(&endless.problem, SIZES[0], 0);
    for (int i = 0; i < N_CANCELS; i++) {
        cancel_a_caller(&endless);
        check_all();
    }
    assert_true(problem_same_bits(&endless.problem, &expected[0])); /* its last call was done */
    problem_destroy(&endless.problem);
    assert_int_equal(atomic_load(&n_failures), 0);
}

/* A lock that stayed held would hang the program. */
TEST_WITH_TEARDOWN(a_cancelled_caller_leaves_the_library_usable, default_threads) {
    assert_success(flash_set_num_threads(4));
    check_cancelled_callers();
}

/* Stops for so long that others who wait for the thread go to sleep. */
static void stop_for_a_while(int signal) {
    struct timespec begin, now;
    (void)signal;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begin.tv_sec) * 1000000000 + now.tv_nsec - begin.tv_nsec < 500000);
}

/* A task that was left undone would keep others waiting. */
TEST_WITH_TEARDOWN(cancelled_threads_of_a_hook_do_their_tasks, default_threads) {
    const struct sigaction action = {.sa_handler = stop_for_a_while, .sa_flags = SA_RESTART};
    struct sigaction before;
    lender_t lender = {.disturbs = true};
    const sizes_t sizes = {/* fewer heads than threads, which share their keys */
                           .batch = 1,   .seqlen_q = 900, .seqlen_k = 900,
                           .n_heads = 3, .n_heads_kv = 3, .d_head = 32};
    test_problem_t p;
    assert_int_equal(sigaction(SIGUSR1, &action, &before), 0);
    assert_success(flash_set_parallel_for(run_in_threads, &lender, 8));
    problem_create(&p, sizes, 7);
    for (int i = 0; i < 3 * N_CANCELS; i++)
        problem_run(&p);
    problem_destroy(&p);
    assert_int_equal(atomic_load(&lender.n_refused), 0);
    sigaction(SIGUSR1, &before, NULL);
}

/* ---- Threads as the system sees them ---- */

enum { MOST_THREADS = 64 };

static int n_own_threads; /* without the library's */

/* The numbers of the process's threads. */
typedef struct threads {
    int count;
    long number[MOST_THREADS];
} threads_t;

static threads_t list_threads(void) {
    threads_t threads = {0};
    DIR *folder = opendir("/proc/self/task");
    assert_non_null(folder);
    for (const struct dirent *e = readdir(folder); e != NULL; e = readdir(folder))
        if (e->d_name[0] != '.' && threads.count < MOST_THREADS)
            threads.number[threads.count++] = strtol(e->d_name, NULL, 10);
    closedir(folder);
    return threads;
}

static bool has_thread(const threads_t *threads, long number) {
    for (int i = 0; i < threads->count; i++)
        if (threads->number[i] == number)
            return true;
    return false;
}

static void *tell_number(void *number) {
    *(long *)number = (long)gettid();
    return NULL;
}

/* Counts the threads of a process whose library has none yet. ThreadSanitizer has one from the
 * first pthread_create() on. A joined thread leaves /proc a moment after pthread_join() has
 * returned. */
static int count_own_threads(void) {
    pthread_t thread;
    long number;
    threads_t threads;
    if (pthread_create(&thread, NULL, tell_number, &number) != 0 || pthread_join(thread, NULL) != 0)
        abort();
    while (threads = list_threads(), has_thread(&threads, number))
        sched_yield();
    return threads.count;
}

/* Returns the number of threads when the pool has none any more. */
static int await_end_of_pool(void) {
    assert_success(flash_set_num_threads(1));
    int n = list_threads().count;
    while (n > n_own_threads) {
        sched_yield();
        n = list_threads().count;
    }
    return n;
}

/* Reads the signals that a thread blocks: bit s - 1 stands for signal s. */
static uint64_t read_blocked_signals(long thread) {
    char path[64], line[128];
    unsigned long long blocked = 0;
    snprintf(path, sizeof path, "/proc/self/task/%ld/status", thread);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL && sscanf(line, "SigBlk: %llx", &blocked) != 1)
        continue;
    fclose(file);
    return blocked;
}

static void check_that_signals_are_blocked(long thread) {
    const uint64_t blocked = read_blocked_signals(thread);
    for (int signal = 1; signal < 32; signal++)
        if (signal != SIGKILL && signal != SIGSTOP && !(blocked >> (signal - 1) & 1))
            fail_msg("thread %ld does not block signal %d", thread, signal);
}

TEST_WITH_TEARDOWN(the_pools_threads_take_no_signals, default_threads) {
    await_end_of_pool();
    const threads_t before = list_threads();
    assert_success(flash_set_num_threads(4));
    check_all();
    const threads_t after = list_threads();
    assert_int_equal(after.count, before.count + 3);
    for (int i = 0; i < after.count; i++)
        if (!has_thread(&before, after.number[i]))
            check_that_signals_are_blocked(after.number[i]);
}

/* Sets the stack size of new threads. With more than there is memory for, the process gets none. */
static size_t set_stack_size(size_t size) {
    pthread_attr_t attributes;
    size_t before;
    assert_int_equal(pthread_getattr_default_np(&attributes), 0);
    assert_int_equal(pthread_attr_getstacksize(&attributes, &before), 0);
    assert_int_equal(pthread_attr_setstacksize(&attributes, size), 0);
    assert_int_equal(pthread_setattr_default_np(&attributes), 0);
    pthread_attr_destroy(&attributes);
    return before;
}

TEST_WITH_TEARDOWN(a_refused_thread_is_not_asked_for_again, default_threads) {
    const int n_before = await_end_of_pool();
    const size_t size = set_stack_size(SIZE_MAX / 4);
    assert_success(flash_set_num_threads(4));
    check_all();
    assert_int_equal(list_threads().count, n_before);
    set_stack_size(size);
    check_all();
    assert_int_equal(list_threads().count, n_before);
    assert_success(flash_set_num_threads(4));
    check_all();
    assert_int_equal(list_threads().count, n_before + 3);
}

int main(void) {
    n_own_threads = count_own_threads();
    return run_all_tests(compute_expected, destroy_expected);
}
