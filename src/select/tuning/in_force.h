/*
 * The measured results in force are those that the caller has set, else those of the environment.
 */
#ifndef FLASH_TUNING_IN_FORCE_H
#define FLASH_TUNING_IN_FORCE_H

#include "select/tuning/results.h"

/* Finds the results in force, or NULL. Returns INVALID_ARGUMENT for a bad FLASHATTN_TUNING. */
flash_status_t tuning_in_force(const tuning_results_t **results);

#endif
