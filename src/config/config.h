/*
 * Configurations: their order, the names of their enumerators, and the way in and out of the
 * interface.
 */
#ifndef FLASH_CONFIG_H
#define FLASH_CONFIG_H

#include "flashattn.h"

/* Returns a number that is negative, zero or positive, by the first field in sort order that
 * differs. */
int config_compare(const flash_config_t *a, const flash_config_t *b);

/* Reads a caller's configuration; fills one. */
flash_status_t config_read(flash_config_t *ours, const flash_config_t *theirs);
flash_status_t config_write(const flash_config_t *ours, flash_config_t *theirs);

/* Return names for messages; "unknown" where there is none. */
const char *config_arch_name(int32_t arch);
const char *config_dtype_name(int32_t dtype);

#endif
