/*
 * The table of kernels: generated (codegen/), sorted by configuration, searched by bsearch.
 */
#ifndef FLASH_KERNEL_TABLE_H
#define FLASH_KERNEL_TABLE_H

#include "flashattn.h"

struct flash_kernel {
    flash_config_t config;
    const char *name;
    void (*function)(void); /* CPU families: a cpu_kernel_t (cpu/cpu_kernel.h) */
};

extern const struct flash_kernel kernel_table[];
extern const int32_t kernel_table_count;

/* The row of a configuration, or NULL when the table has none. */
const flash_kernel_t *kernel_table_find(const flash_config_t *config);

/* The same, or a refusal: INVALID_CONFIG with the broken rule, or NOT_BUILT. */
flash_status_t kernel_table_require(const flash_config_t *config, const flash_kernel_t **kernel);

#endif
