/*
 * These functions read measured results.
 */
#ifndef FLASH_TUNING_PARSE_H
#define FLASH_TUNING_PARSE_H

#include "select/tuning/results.h"

/* Reads results, and skips those of configurations that are not in the table, with a message if
 * `trace` is set. Returns OUT_OF_MEMORY, or INVALID_ARGUMENT with the line and the position. */
flash_status_t tuning_parse(const char *text, bool trace, tuning_results_t **results);

#endif
