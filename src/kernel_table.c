/*
 * Look-up in the generated table.
 */
#include "kernel_table.h"

#include "config.h"

#include <stdlib.h>

static int compare_key(const void *key, const void *row) {
    const flash_config_t *config = key;
    const flash_kernel_t *kernel = row;
    return config_compare(config, &kernel->config);
}

const flash_kernel_t *kernel_table_find(const flash_config_t *config) {
    return bsearch(config, kernel_table, (size_t)kernel_table_count, sizeof kernel_table[0],
                   compare_key);
}
