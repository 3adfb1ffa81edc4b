/*
 * The measured results that count: those that the caller has set, else those of the environment.
 */
#ifndef FLASH_TUNING_IN_FORCE_H
#define FLASH_TUNING_IN_FORCE_H

#include "select/tuning/results.h"

/* Finds the results of the caller that are in force, or NULL. INVALID_ARGUMENT (FLASH_TUNING). */
flash_status_t tuning_in_force(const tuning_results_t **results);

#endif
