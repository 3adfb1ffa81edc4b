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

/* Compares the fields that come first in the order of the table. */
static int compare_first_fields(const flash_config_t *config, int32_t arch, int32_t op,
                                int32_t dtype) {
    if (config->arch != arch)
        return config->arch < arch ? -1 : 1;
    if (config->op != op)
        return config->op < op ? -1 : 1;
    return config->dtype == dtype ? 0 : config->dtype < dtype ? -1 : 1;
}

kernel_range_t kernel_table_forward_rows(const family_t *family, int32_t dtype) {
    const int32_t arch = family->facts->arch, op = FLASH_OP_FORWARD;
    int32_t first = 0, end = kernel_table_count;
    while (first < end) {
        const int32_t middle = first + (end - first) / 2;
        if (compare_first_fields(&kernel_table[middle].config, arch, op, dtype) < 0)
            first = middle + 1;
        else
            end = middle;
    }
    while (end < kernel_table_count &&
           compare_first_fields(&kernel_table[end].config, arch, op, dtype) == 0)
        end++;
    return (kernel_range_t){kernel_table + first, kernel_table + end};
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

static bool has_cuda_rows(void) {
    for (int32_t i = 0; i < kernel_table_count; i++)
        if (!kernel_table[i].family->facts->layout->on_cpu)
            return true;
    return false;
}

flash_status_t kernel_table_require(const flash_config_t *config, const flash_kernel_t **kernel) {
    *kernel = kernel_table_find(config);
    if (*kernel != NULL)
        return FLASH_SUCCESS;
    FLASH_TRY(config_check(config));
    const family_t *family;
    char text[FLASH_CONFIG_TEXT_SIZE] = "";
    FLASH_TRY(family_require(config->arch, FLASH_ERROR_INVALID_CONFIG, &family));
    FLASH_TRY(flash_config_format(config, text, sizeof text));
    const bool lacks_cuda = !family->facts->layout->on_cpu && !has_cuda_rows();
    return status_fail(
        FLASH_ERROR_NOT_BUILT,
        "%s is a legal configuration without a kernel in this library%s (kernels in it: %d)", text,
        lacks_cuda ? ", which was built without CUDA" : "", kernel_table_count);
}
