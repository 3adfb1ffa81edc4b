/*
 * A row is found in the generated table by binary search.
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

kernel_shapes_t kernel_table_shapes(const family_t *family, int32_t op, int32_t dtype) {
    const kernel_group_t *group = &kernel_groups[family->facts->number][op][dtype];
    const kernel_shape_t *begin = kernel_shapes + group->first_shape;
    return (kernel_shapes_t){begin, begin + group->n_shapes};
}

const kernel_shape_t *kernel_table_least_shape(kernel_shapes_t shapes, int32_t d_head,
                                               int32_t d_head_v) {
    for (const kernel_shape_t *shape = shapes.begin; shape < shapes.end; shape++)
        if (shape->d_head >= d_head && shape->d_head_v >= d_head_v)
            return shape;
    return NULL;
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
