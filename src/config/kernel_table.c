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

/* Returns the first row that is not before a configuration. */
static const flash_kernel_t *lower_bound(const flash_config_t *config) {
    const flash_kernel_t *first = kernel_table;
    for (int32_t left = kernel_table_count; left > 0;) {
        const int32_t half = left / 2;
        const bool is_before = config_compare(&first[half].config, config) < 0;
        first += is_before ? half + 1 : 0;
        left = is_before ? left - half - 1 : half;
    }
    return first;
}

kernel_range_t kernel_table_rows(const family_t *family, int32_t op, int32_t dtype) {
    const flash_config_t least = {.arch = family->facts->arch, .op = op, .dtype = dtype};
    kernel_range_t rows = {lower_bound(&least), kernel_table + kernel_table_count};
    const flash_kernel_t *end = rows.begin;
    while (end < rows.end && end->family == family && end->config.op == op &&
           end->config.dtype == dtype)
        end++;
    rows.end = end;
    return rows;
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
        if (!kernel_table[i].family->facts->on_cpu)
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
    const bool lacks_cuda = !family->facts->on_cpu && !has_cuda_rows();
    return status_fail(
        FLASH_ERROR_NOT_BUILT,
        "%s is a legal configuration without a kernel in this library%s (kernels in it: %d)", text,
        lacks_cuda ? ", which was built without CUDA" : "", kernel_table_count);
}
