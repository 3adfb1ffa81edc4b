/*
 * This header has the order of configurations, the names of their enumerators, and copies across
 * the interface.
 */
#ifndef FLASH_CONFIG_H
#define FLASH_CONFIG_H

#include "flashattn.h"

/* Compares by the first field in sort order that differs: negative, zero or positive. */
int config_compare(const flash_config_t *a, const flash_config_t *b);

/* Returns the head dimension of V and O. */
static inline int32_t config_d_head_v(const flash_config_t *config) {
    return config->d_head_v != 0 ? config->d_head_v : config->d_head;
}

/* These copy a caller's configuration from and to a struct of the caller's size. */
flash_status_t config_read(flash_config_t *ours, const flash_config_t *theirs);
flash_status_t config_write(const flash_config_t *ours, flash_config_t *theirs);

/* These return names for messages, or "unknown". */
const char *config_arch_name(int32_t arch);
const char *config_dtype_name(int32_t dtype);

#endif
