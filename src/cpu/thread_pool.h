/*
 * CPU work is shared among the library's own threads, or among those of the caller's hook. A call
 * decides once which, and keeps to it whatever is set meanwhile.
 */
#ifndef FLASH_THREAD_POOL_H
#define FLASH_THREAD_POOL_H

#include "core/problem.h"
#include "flashattn.h"

enum { THREAD_POOL_MAX = EXECUTOR_MAX_WORKERS }; /* threads at most */

typedef struct thread_pool thread_pool_t;

/* The threads of one call. */
typedef struct parallel {
    flash_parallel_for_t run; /* the hook; NULL: the threads are the pool's */
    void *context;
    thread_pool_t *pool;
    int32_t n_workers; /* the caller's thread included */
} parallel_t;

/* Takes the executor's threads, or the present ones of the process; parallel_release() gives them
 * back. Returns OUT_OF_MEMORY, or INVALID_ARGUMENT for a bad FLASHATTN_NUM_THREADS. */
flash_status_t parallel_acquire(const executor_t *executor, parallel_t *parallel);
void parallel_release(parallel_t *parallel);

/* Starts the threads that are still missing. If the system refuses one, those that run do all the
 * work until the thread count is set again. */
void parallel_start(parallel_t *parallel);

/* Calls task(argument, i) once for each i in 0 ... n_tasks - 1 and returns when all are done. The
 * caller's thread takes part, so that progress needs no other thread. */
void parallel_for(parallel_t *parallel, int32_t n_tasks, flash_task_t task, void *argument);

#endif
