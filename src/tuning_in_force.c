/*
 * The measured results that count: those that the caller has set, else those of the environment.
 */
#include "tuning.h"

#include "call_scope.h"
#include "status.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

/* Those of flash_set_tuning(), NULL: none; and all that ever were, which calls may still read. */
static _Atomic(tuning_results_t *) current;
static tuning_results_t *newest;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

const tuning_results_t *tuning_in_force(const environment_t *environment) {
    const tuning_results_t *set = atomic_load_explicit(&current, memory_order_acquire);
    return set != NULL ? set : environment->tuning;
}

flash_status_t flash_set_tuning(const char *text) {
    FLASH_CALL_SCOPE();
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
