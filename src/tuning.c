/*
 * Measured results: their order, the ones in force, and how selection follows them.
 */
#include "tuning.h"

#include "kernel_table.h"
#include "status.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>

/* ---- Order ---- */

static int compare_keys(const tuning_key_t *a, const tuning_key_t *b) {
    for (int i = 0; i < TUNING_N_FIELDS; i++)
        if (a->fields[i] != b->fields[i])
            return a->fields[i] < b->fields[i] ? -1 : 1;
    return 0;
}

int tuning_compare(const tuning_row_t *a, const tuning_row_t *b) {
    const int keys = compare_keys(&a->key, &b->key);
    if (keys != 0)
        return keys;
    if (a->nanoseconds != b->nanoseconds)
        return a->nanoseconds < b->nanoseconds ? -1 : 1;
    return (a->kernel > b->kernel) - (a->kernel < b->kernel);
}

/* ---- Keys ---- */

int32_t tuning_size_class(int64_t size) {
    static const double SQRT_HALF = 0.70710678118654752;
    int exponent;
    if (size < 2)
        return 0;
    const double mantissa = frexp((double)size, &exponent); /* in [0.5, 1) */
    return mantissa > SQRT_HALF ? exponent : exponent - 1;
}

/* The most keys that a query sees. */
static int64_t visible_keys(const flash_params_t *p) {
    const int64_t window = (int64_t)p->window_left + p->window_right + 1;
    const bool bounded = p->window_left >= 0 && p->window_right >= 0;
    return bounded && window < p->seqlen_k ? window : p->seqlen_k;
}

tuning_key_t tuning_key(const problem_t *problem, const device_t *device) {
    const flash_params_t *p = &problem->params;
    return (tuning_key_t){{
        [TUNING_COMPUTE_CAPABILITY] = device->compute_capability,
        [TUNING_MULTIPROCESSORS] = device->n_multiprocessors,
        [TUNING_DTYPE] = problem->dtype,
        [TUNING_D_HEAD] = p->d_head,
        [TUNING_FEATURES] = problem->features,
        [TUNING_LOG2_Q] = tuning_size_class(p->seqlen_q),
        [TUNING_LOG2_K] = tuning_size_class(visible_keys(p)),
        [TUNING_LOG2_HEADS] = tuning_size_class((int64_t)p->batch * p->n_heads),
    }};
}

/* ---- Following ---- */

/* The results of one key. */
typedef struct range {
    const tuning_row_t *rows;
    int32_t count;
} range_t;

static range_t find(const tuning_row_t *rows, int32_t count, const tuning_key_t *key) {
    int32_t first = 0, end = count;
    while (first < end) {
        const int32_t middle = first + (end - first) / 2;
        if (compare_keys(&rows[middle].key, key) < 0)
            first = middle + 1;
        else
            end = middle;
    }
    while (end < count && compare_keys(&rows[end].key, key) == 0)
        end++;
    return (range_t){rows + first, end - first};
}

/* A family that is not among the results was not measured, and may be faster than all that were. */
static bool has_family(range_t range, int32_t arch) {
    for (int32_t i = 0; i < range.count; i++)
        if (range.rows[i].kernel->config.arch == arch)
            return true;
    return false;
}

/* The fastest whose kernel serves this very problem, or NULL. */
static const tuning_row_t *fastest(range_t range, const problem_t *problem,
                                   const device_t *device) {
    for (int32_t i = 0; i < range.count; i++)
        if (select_serves(range.rows[i].kernel, problem, device))
            return &range.rows[i];
    return NULL;
}

void tuning_follow(const tuning_results_t *own, const problem_t *problem, const device_t *device,
                   const flash_kernel_t **kernel, char reason[SELECT_REASON_SIZE]) {
    if (device_is_cpu(device) || problem->batch_invariant)
        return;
    const tuning_key_t key = tuning_key(problem, device);
    range_t range = {NULL, 0};
    if (own != NULL)
        range = find(own->rows, own->count, &key);
    const bool built_in = range.count == 0 && !(own != NULL && own->alone);
    if (built_in)
        range = find(tuning_table, tuning_table_count, &key);
    const tuning_row_t *row = fastest(range, problem, device);
    if (row == NULL || !has_family(range, (*kernel)->config.arch))
        return;
    *kernel = row->kernel;
    snprintf(reason, SELECT_REASON_SIZE,
             "measured: %" PRId64 " ns, the fastest of %d %s for this size on compute capability "
             "%d with %d multiprocessors",
             row->nanoseconds, range.count, built_in ? "built-in results" : "given results",
             device->compute_capability, device->n_multiprocessors);
}

/* ---- Results in force ---- */

/* Those of flash_set_tuning(), NULL: none; and all that ever were, which calls may still read. */
static _Atomic(tuning_results_t *) current;
static tuning_results_t *newest;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

const tuning_results_t *tuning_in_force(const environment_t *environment) {
    const tuning_results_t *set = atomic_load_explicit(&current, memory_order_acquire);
    return set != NULL ? set : environment->tuning;
}

flash_status_t flash_set_tuning(const char *text) {
    const environment_t *environment;
    tuning_results_t *results = NULL;
    FLASH_TRY(environment_get(&environment));
    if (text != NULL)
        FLASH_TRY(tuning_parse(text, environment->trace, &results));
    pthread_mutex_lock(&lock);
    if (results != NULL) {
        results->older = newest;
        newest = results;
    }
    atomic_store_explicit(&current, results, memory_order_release);
    pthread_mutex_unlock(&lock);
    return FLASH_SUCCESS;
}
