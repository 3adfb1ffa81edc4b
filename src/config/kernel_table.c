/*
 * Rows are found in the generated table by binary search.
 */
#include "config/kernel_table.h"

#include "config/config.h"
#include "config/rules.h"
#include "core/status.h"

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

flash_status_t kernel_table_check(const flash_kernel_t *kernel) {
    const uintptr_t offset = (uintptr_t)kernel - (uintptr_t)kernel_table;
    FLASH_REQUIRE(
        offset % sizeof kernel_table[0] == 0 &&
            offset / sizeof kernel_table[0] < (uintptr_t)kernel_table_count,
        FLASH_ERROR_INVALID_ARGUMENT,
        "kernel is %p: no row of this library's table, as flash_lookup_kernel() returns it",
        (const void *)kernel);
    return FLASH_SUCCESS;
}

flash_status_t kernel_table_require(const flash_config_t *config, const flash_kernel_t **kernel) {
    *kernel = kernel_table_find(config);
    if (*kernel != NULL)
        return FLASH_SUCCESS;
    FLASH_TRY(config_check(config));
    char text[FLASH_CONFIG_TEXT_SIZE] = "";
    FLASH_TRY(flash_config_format(config, text, sizeof text));
    return status_fail(FLASH_ERROR_NOT_BUILT,
                       "%s is a legal configuration without a kernel in this library (%d kernels)",
                       text, kernel_table_count);
}
