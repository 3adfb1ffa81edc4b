/*
 * This file has the library's own threads, and the caller's hook in their place. It does without
 * OpenMP, because two runtimes in one process clash and OpenMP does not survive fork().
 */
#define _GNU_SOURCE
#include "cpu/thread_pool.h"

#include "core/call_scope.h"
#include "core/environment.h"
#include "core/status.h"
#include "cpu/count.h"
#include "cpu/countdown.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>

/* This is one parallel_for(). It lies on the caller's stack until n_left is 0. */
typedef struct job {
    struct job *next;  /* guarded by the pool's lock */
    int32_t n_claimed; /* guarded by the pool's lock */
    flash_task_t task;
    void *argument;
    int32_t n_tasks;
    atomic_int_least64_t n_left; /* tasks still to be done */
} job_t;

struct thread_pool {
    int32_t references;           /* guarded by state.lock */
    int32_t n_workers;            /* the caller's thread included */
    countdown_sleepers_t callers; /* callers who wait for the last tasks of their jobs */

    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t work;  /* signalled when a job has come, and at stop */
    job_t *jobs;          /* those with unclaimed tasks */
    bool stop;
    bool refused; /* the system gave no more threads, and is not asked again */
    int32_t n_started;
    pthread_t threads[]; /* n_workers - 1 */
};

static struct {
    pthread_mutex_t lock;
    int32_t n_threads; /* flash_set_num_threads(); 0: the default */
    flash_parallel_for_t run;
    void *context;
    int32_t n_workers;   /* of the hook */
    thread_pool_t *pool; /* made when first needed */
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- Jobs ---- */

static void remove_job(thread_pool_t *pool, const job_t *job) {
    job_t **link = &pool->jobs;
    while (*link != job)
        link = &(*link)->next;
    *link = job->next;
}

static void append_job(thread_pool_t *pool, job_t *job) {
    job_t **link = &pool->jobs;
    while (*link != NULL)
        link = &(*link)->next;
    *link = job;
}

/* Claims a task of the job; the pool's lock is held. */
static int32_t claim(thread_pool_t *pool, job_t *job) {
    const int32_t index = job->n_claimed++;
    if (job->n_claimed == job->n_tasks)
        remove_job(pool, job);
    return index;
}

/* Runs a claimed task; the pool's lock is not held. */
static void run_task(thread_pool_t *pool, job_t *job, int32_t index) {
    job->task(job->argument, index);
    if (atomic_fetch_sub(&job->n_left, 1) == 1)
        countdown_tell(&pool->callers);
}

static void *worker(void *argument) {
    thread_pool_t *pool = argument;
    call_scope_enter(); /* until the thread ends */
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->jobs == NULL && !pool->stop)
            pthread_cond_wait(&pool->work, &pool->lock);
        if (pool->stop)
            break;
        job_t *job = pool->jobs;
        const int32_t index = claim(pool, job);
        pthread_mutex_unlock(&pool->lock);
        run_task(pool, job, index);
        pthread_mutex_lock(&pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* Wakes n workers. The lock is not held, so that they do not wake only to wait for it. */
static void wake_workers(thread_pool_t *pool, int32_t n) {
    if (n >= pool->n_workers - 1)
        pthread_cond_broadcast(&pool->work);
    else
        for (int32_t i = 0; i < n; i++)
            pthread_cond_signal(&pool->work);
}

/* The caller's thread runs tasks until all are claimed, then waits for those of other threads. */
static void run_job(thread_pool_t *pool, job_t *job) {
    pthread_mutex_lock(&pool->lock);
    append_job(pool, job);
    int32_t index = claim(pool, job);
    pthread_mutex_unlock(&pool->lock);
    wake_workers(pool, job->n_tasks - 1);
    run_task(pool, job, index);
    pthread_mutex_lock(&pool->lock);
    while (job->n_claimed < job->n_tasks) {
        index = claim(pool, job);
        pthread_mutex_unlock(&pool->lock);
        run_task(pool, job, index);
        pthread_mutex_lock(&pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    countdown_wait(&job->n_left, 0, &pool->callers);
}

/* ---- Life of a pool ---- */

static thread_pool_t *pool_new(int32_t n_workers) {
    const size_t n_threads = (size_t)n_workers - 1;
    thread_pool_t *pool = calloc(1, sizeof *pool + n_threads * sizeof pool->threads[0]);
    if (pool == NULL)
        return NULL;
    pool->references = 1;
    pool->n_workers = n_workers;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    countdown_sleepers_init(&pool->callers);
    return pool;
}

static bool start_thread(thread_pool_t *pool) {
    if (pthread_create(&pool->threads[pool->n_started], NULL, worker, pool) != 0)
        return false;
    pool->n_started++;
    return true;
}

/* Threads start with all signals blocked: the program's handlers run in its own threads. */
static void start_threads(thread_pool_t *pool) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (!pool->refused && pool->n_started < pool->n_workers - 1)
        pool->refused = !start_thread(pool);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void pool_start(thread_pool_t *pool) {
    pthread_mutex_lock(&pool->lock);
    if (!pool->refused && pool->n_started < pool->n_workers - 1)
        start_threads(pool);
    pthread_mutex_unlock(&pool->lock);
}

static void pool_delete(thread_pool_t *pool) {
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (int32_t i = 0; i < pool->n_started; i++)
        pthread_join(pool->threads[i], NULL);
    countdown_sleepers_destroy(&pool->callers);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

static void pool_release(thread_pool_t *pool) {
    if (pool == NULL)
        return;
    pthread_mutex_lock(&state.lock);
    const bool last = --pool->references == 0;
    pthread_mutex_unlock(&state.lock);
    if (last)
        pool_delete(pool);
}

/* ---- Fork and unload ---- */

static void before_fork(void) {
    pthread_mutex_lock(&state.lock);
}

static void after_fork_in_parent(void) {
    pthread_mutex_unlock(&state.lock);
}

/* The child has none of the pool's threads, and starts its own when it needs them. */
static void after_fork_in_child(void) {
    free(state.pool);
    state.pool = NULL;
    pthread_mutex_unlock(&state.lock);
}

static void watch_forks(void) {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* Runs at dlclose() and exit(). A call that still runs in another thread keeps its pool. */
__attribute__((destructor)) static void unload(void) {
    pthread_mutex_lock(&state.lock);
    thread_pool_t *pool = state.pool;
    state.pool = NULL;
    pthread_mutex_unlock(&state.lock);
    pool_release(pool);
}

/* ---- FLASHATTN_NUM_THREADS ---- */

static environment_variable_t variable = ENVIRONMENT_VARIABLE_INIT;
static int32_t n_threads_of_environment; /* 0: not set */

static flash_status_t parse(const char *value) {
    char *end;
    errno = 0;
    const long n = strtol(value, &end, 10);
    FLASH_REQUIRE(errno == 0 && *end == '\0' && n >= 1 && n <= THREAD_POOL_MAX,
                  FLASH_ERROR_INVALID_ARGUMENT, "FLASHATTN_NUM_THREADS is \"%.64s\": not 1 ... %d",
                  value, THREAD_POOL_MAX);
    n_threads_of_environment = (int32_t)n;
    return FLASH_SUCCESS;
}

static void read_variable(void) {
    environment_parse(&variable, "FLASHATTN_NUM_THREADS", parse);
}

/* ---- Threads for a call ---- */

static int32_t default_n_threads(void) {
    const int32_t n = n_threads_of_environment ? n_threads_of_environment : cpu_count("");
    return n > THREAD_POOL_MAX ? THREAD_POOL_MAX : n;
}

/* Makes state.pool if there is none; state.lock is held. */
static flash_status_t ensure_pool(void) {
    static pthread_once_t watching = PTHREAD_ONCE_INIT;
    if (state.pool != NULL)
        return FLASH_SUCCESS;
    pthread_once(&watching, watch_forks);
    const int32_t n = state.n_threads ? state.n_threads : default_n_threads();
    state.pool = pool_new(n);
    FLASH_REQUIRE(state.pool != NULL, FLASH_ERROR_OUT_OF_MEMORY,
                  "no memory for a pool of %d threads", n);
    return FLASH_SUCCESS;
}

/* Takes the process's pool with at most n_workers; 0 stands for all of them. */
static flash_status_t acquire_pool(int32_t n_workers, parallel_t *parallel) {
    FLASH_TRY(ensure_pool());
    state.pool->references++;
    parallel->pool = state.pool;
    parallel->n_workers = state.pool->n_workers;
    if (n_workers > 0 && n_workers < parallel->n_workers)
        parallel->n_workers = n_workers;
    return FLASH_SUCCESS;
}

static flash_status_t acquire_locked(const executor_t *executor, parallel_t *parallel) {
    const bool wants_pool = executor->run == NULL && executor->n_workers > 0;
    *parallel = (parallel_t){state.run, state.context, NULL, state.n_workers};
    if (executor->run != NULL)
        *parallel = (parallel_t){executor->run, executor->context, NULL, executor->n_workers};
    if (parallel->run != NULL && !wants_pool)
        return FLASH_SUCCESS;
    parallel->run = NULL;
    return acquire_pool(executor->n_workers, parallel);
}

flash_status_t parallel_acquire(const executor_t *executor, parallel_t *parallel) {
    FLASH_TRY(environment_read(&variable, read_variable));
    pthread_mutex_lock(&state.lock);
    const flash_status_t status = acquire_locked(executor, parallel);
    pthread_mutex_unlock(&state.lock);
    return status;
}

void parallel_release(parallel_t *parallel) {
    pool_release(parallel->pool);
}

void parallel_start(parallel_t *parallel) {
    if (parallel->pool != NULL)
        pool_start(parallel->pool);
}

/* A task with its argument, as the hook's threads run it. */
typedef struct lent_task {
    flash_task_t task;
    void *argument;
} lent_task_t;

static void run_lent_task(void *lent_task, int32_t index) {
    const lent_task_t *lent = lent_task;
    const call_scope_t scope = call_scope_enter();
    lent->task(lent->argument, index);
    call_scope_leave(&scope);
}

void parallel_for(parallel_t *parallel, int32_t n_tasks, flash_task_t task, void *argument) {
    if (n_tasks == 1) {
        task(argument, 0);
    } else if (parallel->run != NULL) {
        lent_task_t lent = {task, argument};
        parallel->run(parallel->context, n_tasks, run_lent_task, &lent);
    } else if (n_tasks > 1) {
        job_t job = {.task = task, .argument = argument, .n_tasks = n_tasks, .n_left = n_tasks};
        pool_start(parallel->pool);
        run_job(parallel->pool, &job);
    }
}

flash_status_t flash_set_num_threads(int32_t n_threads) {
    FLASH_CALL_SCOPE();
    FLASH_REQUIRE(n_threads >= 0 && n_threads <= THREAD_POOL_MAX, FLASH_ERROR_INVALID_ARGUMENT,
                  "n_threads is %d: not 0 (the default) or 1 ... %d", n_threads, THREAD_POOL_MAX);
    pthread_mutex_lock(&state.lock);
    thread_pool_t *old = state.pool;
    state.n_threads = n_threads;
    state.pool = NULL;
    pthread_mutex_unlock(&state.lock);
    pool_release(old);
    return FLASH_SUCCESS;
}

int32_t flash_num_threads(void) {
    FLASH_CALL_SCOPE();
    const executor_t of_process = {0};
    parallel_t parallel;
    if (parallel_acquire(&of_process, &parallel) != FLASH_SUCCESS)
        return 0;
    parallel_release(&parallel);
    return parallel.n_workers;
}

flash_status_t flash_set_parallel_for(flash_parallel_for_t run, void *context, int32_t n_workers) {
    FLASH_CALL_SCOPE();
    if (run != NULL)
        FLASH_REQUIRE(n_workers >= 1 && n_workers <= THREAD_POOL_MAX, FLASH_ERROR_INVALID_ARGUMENT,
                      "n_workers is %d: not 1 ... %d", n_workers, THREAD_POOL_MAX);
    pthread_mutex_lock(&state.lock);
    state.run = run;
    state.context = context;
    state.n_workers = n_workers;
    pthread_mutex_unlock(&state.lock);
    return FLASH_SUCCESS;
}
