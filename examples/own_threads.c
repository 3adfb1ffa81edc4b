/*
 * An engine decodes over a cache that grows, and lends the library its own threads. Each step is
 * computed once more by one thread of the library, which gives the same bits.
 *
 *     cc examples/own_threads.c $(pkg-config --cflags --libs flashattn) -o own_threads -pthread
 *     ./own_threads
 *
 * There is no model: Q, K and V are random numbers, which lie in the cache before their tokens
 * come.
 */
#include <flashattn.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>
#include <time.h>

enum { MOST_THREADS = 64, N_STEPS = 32 };
enum { BATCH = 4, CONTEXT = 2048, N_HEADS = 32, N_HEADS_KV = 8, D_HEAD = 128 };
enum { Q_SIZE = BATCH * N_HEADS * D_HEAD, KV_SIZE = BATCH * CONTEXT * N_HEADS_KV * D_HEAD };

static void check(flash_status_t status) {
    if (status != FLASH_SUCCESS) {
        fprintf(stderr, "%s: %s\n", flash_status_string(status), flash_last_error());
        exit(EXIT_FAILURE);
    }
}

/* ---- The engine's threads ---- */

typedef struct pool {
    mtx_t lock; /* of everything below */
    cnd_t work_is_there, all_is_done;
    flash_task_t task;
    void *argument;
    int32_t n_tasks, next, n_running;
    bool ends;
    int n_threads;
    thrd_t threads[MOST_THREADS]; /* the thread that makes the calls is one more */
} pool_t;

/* Runs tasks until none is left to begin. The lock is held, except while a task runs. */
static void run_tasks(pool_t *pool) {
    while (pool->next < pool->n_tasks) {
        const int32_t index = pool->next++;
        pool->n_running++;
        mtx_unlock(&pool->lock);
        pool->task(pool->argument, index);
        mtx_lock(&pool->lock);
        pool->n_running--;
    }
    if (pool->n_running == 0)
        cnd_signal(&pool->all_is_done);
}

static int thread_main(void *context) {
    pool_t *pool = context;
    mtx_lock(&pool->lock);
    while (!pool->ends) {
        run_tasks(pool);
        cnd_wait(&pool->work_is_there, &pool->lock);
    }
    mtx_unlock(&pool->lock);
    return 0;
}

/* The library calls this (flash_parallel_for_t). Here one thread makes all calls, so that the pool
 * has one set of tasks at a time. */
static void parallel_for(void *context, int32_t n_tasks, flash_task_t task, void *argument) {
    pool_t *pool = context;
    mtx_lock(&pool->lock);
    pool->task = task;
    pool->argument = argument;
    pool->n_tasks = n_tasks;
    pool->next = 0;
    cnd_broadcast(&pool->work_is_there);
    run_tasks(pool);
    while (pool->n_running > 0)
        cnd_wait(&pool->all_is_done, &pool->lock);
    mtx_unlock(&pool->lock);
}

static void start_pool(pool_t *pool, int n_threads) {
    pool->n_threads = n_threads;
    mtx_init(&pool->lock, mtx_plain);
    cnd_init(&pool->work_is_there);
    cnd_init(&pool->all_is_done);
    for (int i = 0; i < n_threads; i++)
        if (thrd_create(&pool->threads[i], thread_main, pool) != thrd_success)
            exit(EXIT_FAILURE);
}

static void end_pool(pool_t *pool) {
    mtx_lock(&pool->lock);
    pool->ends = true;
    cnd_broadcast(&pool->work_is_there);
    mtx_unlock(&pool->lock);
    for (int i = 0; i < pool->n_threads; i++)
        thrd_join(pool->threads[i], NULL);
}

/* ---- Decoding ---- */

static float *random_numbers(size_t count) {
    float *numbers = malloc(count * sizeof *numbers);
    if (numbers == NULL)
        exit(EXIT_FAILURE);
    for (size_t i = 0; i < count; i++)
        numbers[i] = 2.0f * (float)rand() / (float)RAND_MAX - 1.0f;
    return numbers;
}

/* Describes a step: one query per sequence, over the first lengths[b] keys of its cache. */
static flash_forward_args_t step_args(const int32_t *lengths) {
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    args.dtype = FLASH_DTYPE_FP32;
    args.flags = FLASH_FLAG_CAUSAL;
    args.batch = BATCH;
    args.seqlen_q = 1;
    args.seqlen_k = CONTEXT; /* a bound */
    args.seqused_k = lengths;
    args.n_heads = N_HEADS;
    args.n_heads_kv = N_HEADS_KV;
    args.d_head = D_HEAD;
    args.q = flash_tensor_bshd(random_numbers(Q_SIZE), 1, N_HEADS, D_HEAD);
    args.k = flash_tensor_bshd(random_numbers(KV_SIZE), CONTEXT, N_HEADS_KV, D_HEAD);
    args.v = flash_tensor_bshd(random_numbers(KV_SIZE), CONTEXT, N_HEADS_KV, D_HEAD);
    args.o = flash_tensor_bshd(random_numbers(Q_SIZE), 1, N_HEADS, D_HEAD);
    return args;
}

static double least(double a, double b) {
    return a < b ? a : b;
}

static double now(void) {
    struct timespec time;
    timespec_get(&time, TIME_UTC);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Computes a step by the threads of the executor; returns the seconds that it took. */
static double forward(flash_forward_args_t *args, const flash_kernel_t *kernel,
                      const flash_executor_t *executor) {
    const double begin = now();
    args->executor = executor;
    check(flash_forward(args, kernel, NULL));
    return now() - begin;
}

int main(void) {
    static pool_t pool;
    static float expected[Q_SIZE];
    int32_t lengths[BATCH] = {2000, 500, 1000, 7};
    flash_executor_t own = FLASH_EXECUTOR_INIT, one = FLASH_EXECUTOR_INIT;
    const int n_workers = flash_num_threads() < MOST_THREADS ? flash_num_threads() : MOST_THREADS;
    own.n_workers = n_workers;
    own.run = parallel_for;
    own.context = &pool;
    one.n_workers = 1;
    start_pool(&pool, n_workers - 1);

    flash_forward_args_t args = step_args(lengths);
    const flash_kernel_t *kernel;
    args.executor = &own; /* the workspace is for as many workers */
    check(flash_select_kernel(&args, &kernel, NULL, 0));
    check(flash_workspace_size(&args, kernel, &args.workspace_size));
    args.workspace = malloc(args.workspace_size);

    double of_own = 1, of_one = 1; /* the best times, in seconds */
    bool alike = true;
    for (int step = 0; step < N_STEPS; step++) {
        for (int b = 0; b < BATCH; b++)
            lengths[b]++; /* after K and V of the new token were written at this place */
        of_one = least(of_one, forward(&args, kernel, &one));
        memcpy(expected, args.o.data, sizeof expected);
        of_own = least(of_own, forward(&args, kernel, &own));
        alike = alike && memcmp(expected, args.o.data, sizeof expected) == 0;
    }
    end_pool(&pool);
    printf("%d steps of %d sequences, up to %d keys; the best times of a step:\n", N_STEPS, BATCH,
           lengths[0]);
    printf("one thread of the library    %6.0f us\n", 1e6 * of_one);
    printf("threads of this program, %2d  %6.0f us\n", n_workers, 1e6 * of_own);
    puts(alike ? "All results have the same bits." : "The results differ.");

    free(args.q.data);
    free(args.k.data);
    free(args.v.data);
    free(args.o.data);
    free(args.workspace);
    return alike ? EXIT_SUCCESS : EXIT_FAILURE;
}
