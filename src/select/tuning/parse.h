/*
 * Reading measured results.
 */
#ifndef FLASH_TUNING_PARSE_H
#define FLASH_TUNING_PARSE_H

#include "select/tuning/results.h"

/* Reads results; those of configurations that are not in the table are passed over, aloud with
 * trace. INVALID_ARGUMENT, with the line and the place in it; OUT_OF_MEMORY. */
flash_status_t tuning_parse(const char *text, bool trace, tuning_results_t **results);

#endif
