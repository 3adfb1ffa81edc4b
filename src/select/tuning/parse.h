/*
 * Reading measured results.
 */
#ifndef FLASH_TUNING_PARSE_H
#define FLASH_TUNING_PARSE_H

#include "select/tuning/results.h"

/* Reads results. Those of configurations that are not in the table are skipped, with a message if
 * `trace` is set. Returns INVALID_ARGUMENT, with the line and the position in it, or
 * OUT_OF_MEMORY. */
flash_status_t tuning_parse(const char *text, bool trace, tuning_results_t **results);

#endif
