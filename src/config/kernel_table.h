/*
 * The table of kernels: generated (codegen/), sorted by configuration, searched by bsearch.
 */
#ifndef FLASH_KERNEL_TABLE_H
#define FLASH_KERNEL_TABLE_H

#include "config/family.h"
#include "flashattn.h"

struct flash_kernel {
    flash_config_t config;
    const char *name;
    void (*function)(void); /* CPU families: a cpu_kernel_t (kernels/cpu/cpu_kernel.h); NULL: rows
                               of other families compute what this one serves */
    const family_t *family;
};

extern const struct flash_kernel kernel_table[];
extern const int32_t kernel_table_count;

/* Returns the row of a configuration, or NULL when the table has none. */
const flash_kernel_t *kernel_table_find(const flash_config_t *config);

/* Returns INVALID_ARGUMENT unless the pointer is a row's. */
flash_status_t kernel_table_check(const flash_kernel_t *kernel);

/* Finds the row of a configuration, or refuses: INVALID_CONFIG with the broken rule, or NOT_BUILT.
 */
flash_status_t kernel_table_require(const flash_config_t *config, const flash_kernel_t **kernel);

/* Returns what the kernel's family does with it, by its operation. */
static inline const launch_ops_t *kernel_ops(const flash_kernel_t *kernel) {
    return kernel->family->ops[kernel->config.op];
}

#endif
