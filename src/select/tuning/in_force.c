/*
 * The measured results in force are those that the caller has set, else those of the environment.
 */
#include "select/tuning/in_force.h"

#include "core/call_scope.h"
#include "core/environment.h"
#include "core/status.h"
#include "select/trace.h"
#include "select/tuning/file.h"
#include "select/tuning/parse.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

/* ---- FLASHATTN_TUNING ---- */

static environment_variable_t variable = ENVIRONMENT_VARIABLE_INIT;
static tuning_results_t *of_environment;

static flash_status_t parse(const char *value) {
    bool traced;
    FLASH_TRY(trace_is_on(&traced));
    if (tuning_read(value, traced, &of_environment) != FLASH_SUCCESS) {
        char why[448];
        status_copy_text(status_message(), why, sizeof why);
        return status_fail(FLASH_ERROR_INVALID_ARGUMENT, "FLASHATTN_TUNING: %s", why);
    }
    return FLASH_SUCCESS;
}

static void read_variable(void) {
    environment_parse(&variable, "FLASHATTN_TUNING", parse);
}

/* ---- The results in force ---- */

/* `current` holds the results of flash_set_tuning(), or NULL. All earlier ones are kept too,
 * because calls may still read them; `newest` begins their list. */
static _Atomic(tuning_results_t *) current;
static tuning_results_t *newest;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

flash_status_t tuning_in_force(const tuning_results_t **results) {
    FLASH_TRY(environment_read(&variable, read_variable));
    const tuning_results_t *set = atomic_load_explicit(&current, memory_order_acquire);
    *results = set != NULL ? set : of_environment;
    return FLASH_SUCCESS;
}

flash_status_t flash_set_tuning(const char *text) {
    FLASH_CALL_SCOPE();
    tuning_results_t *results = NULL;
    bool traced;
    FLASH_TRY(trace_is_on(&traced));
    FLASH_TRY(text != NULL ? tuning_parse(text, traced, &results)
                           : environment_read(&variable, read_variable));
    pthread_mutex_lock(&lock);
    if (results != NULL) {
        results->older = newest;
        newest = results;
    }
    atomic_store_explicit(&current, results, memory_order_release);
    pthread_mutex_unlock(&lock);
    return FLASH_SUCCESS;
}
