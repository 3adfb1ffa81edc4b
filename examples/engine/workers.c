/*
 * See workers.h. Workers take the next task of the list until none is left, then sleep.
 */
#include "workers.h"
#include "support.h"

#include <stdbool.h>
#include <stdlib.h>
#include <threads.h>

struct workers {
    mtx_t lock; /* of everything below */
    cnd_t work_is_there, all_is_done;
    flash_task_t task;
    void *argument;
    int32_t n_tasks, next, n_running;
    bool ends;
    int n_threads;
    thrd_t threads[];
};

/* Runs tasks until none is left to begin. The lock is held, except while a task runs. */
static void run_tasks(workers_t *w) {
    while (w->next < w->n_tasks) {
        const int32_t index = w->next++;
        w->n_running++;
        mtx_unlock(&w->lock);
        w->task(w->argument, index);
        mtx_lock(&w->lock);
        w->n_running--;
    }
    if (w->n_running == 0)
        cnd_signal(&w->all_is_done);
}

static int thread_main(void *context) {
    workers_t *w = context;
    mtx_lock(&w->lock);
    while (!w->ends) {
        run_tasks(w);
        cnd_wait(&w->work_is_there, &w->lock);
    }
    mtx_unlock(&w->lock);
    return 0;
}

void workers_run(void *workers, int32_t n_tasks, flash_task_t task, void *argument) {
    workers_t *w = workers;
    mtx_lock(&w->lock);
    w->task = task;
    w->argument = argument;
    w->n_tasks = n_tasks;
    w->next = 0;
    cnd_broadcast(&w->work_is_there);
    run_tasks(w);
    while (w->n_running > 0)
        cnd_wait(&w->all_is_done, &w->lock);
    mtx_unlock(&w->lock);
}

workers_t *workers_start(int n_threads) {
    workers_t *w = calloc(1, sizeof *w + (size_t)n_threads * sizeof w->threads[0]);
    if (w == NULL || mtx_init(&w->lock, mtx_plain) != thrd_success ||
        cnd_init(&w->work_is_there) != thrd_success || cnd_init(&w->all_is_done) != thrd_success)
        fail("%d threads cannot be started", n_threads);
    for (w->n_threads = 1; w->n_threads < n_threads; w->n_threads++)
        if (thrd_create(&w->threads[w->n_threads], thread_main, w) != thrd_success)
            fail("thread %d of %d cannot be started", w->n_threads + 1, n_threads);
    return w;
}

void workers_end(workers_t *w) {
    mtx_lock(&w->lock);
    w->ends = true;
    cnd_broadcast(&w->work_is_there);
    mtx_unlock(&w->lock);
    for (int i = 1; i < w->n_threads; i++)
        thrd_join(w->threads[i], NULL);
    mtx_destroy(&w->lock);
    cnd_destroy(&w->work_is_there);
    cnd_destroy(&w->all_is_done);
    free(w);
}

flash_executor_t workers_executor(workers_t *w) {
    flash_executor_t executor = FLASH_EXECUTOR_INIT;
    executor.n_workers = w->n_threads;
    executor.run = workers_run;
    executor.context = w;
    return executor;
}
