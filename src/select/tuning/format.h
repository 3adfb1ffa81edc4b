/*
 * A measured result is written as a line.
 */
#ifndef FLASH_TUNING_FORMAT_H
#define FLASH_TUNING_FORMAT_H

#include "select/tuning/results.h"

/* Writes the line of a result. Returns INVALID_ARGUMENT (text is NULL) or BUFFER_TOO_SMALL. */
flash_status_t tuning_write(const tuning_row_t *row, char *text, size_t size);

#endif
