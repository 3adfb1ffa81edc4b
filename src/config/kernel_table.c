/*
 * Look-up in the generated table.
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
