/*
 * The measured results that count: those that the caller has set, else those of the environment.
 */
#ifndef FLASH_TUNING_IN_FORCE_H
#define FLASH_TUNING_IN_FORCE_H

#include "core/environment.h"
#include "select/tuning/results.h"

/* Results of the caller that are in force, or NULL. */
const tuning_results_t *tuning_in_force(const environment_t *environment);

#endif
