/*
 * The engine's threads. They compute its matrix products, and run the library's tasks: a pool of
 * workers is an executor.
 */
#ifndef WORKERS_H
#define WORKERS_H

#include <flashattn.h>

typedef struct workers workers_t;

/* Starts n_threads - 1 threads: who gives them work is the last one. */
workers_t *workers_start(int n_threads);
void workers_end(workers_t *workers);

/* Calls task(argument, i) for each i in 0 ... n_tasks - 1, and returns when all have returned. Only
 * one thread may do so at a time. This is a flash_parallel_for_t. */
void workers_run(void *workers, int32_t n_tasks, flash_task_t task, void *argument);

/* Returns the executor that these workers are. */
flash_executor_t workers_executor(workers_t *workers);

#endif
