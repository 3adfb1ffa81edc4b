/*
 * The value of FLASHATTN_TUNING is read here.
 */
#ifndef FLASH_TUNING_FILE_H
#define FLASH_TUNING_FILE_H

#include "select/tuning/results.h"

/* Reads the value: a file, or "none". Returns INVALID_ARGUMENT or OUT_OF_MEMORY. */
flash_status_t tuning_read(const char *value, bool trace, tuning_results_t **results);

#endif
