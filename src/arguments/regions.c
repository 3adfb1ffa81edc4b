/*
 * Every pair of regions is compared of which one is written.
 */
#include "arguments/regions.h"

#include "core/status.h"

void regions_add_sharing(regions_t *regions, const char *name, const flash_tensor_t *tensor,
                         const tensor_shape_t *shape, int32_t sharing) {
    if (tensor_is_empty(shape))
        return;
    if (regions->n < REGIONS_MOST)
        regions->list[regions->n] =
            (region_t){.name = name, .tensor = *tensor, .shape = *shape, .sharing = sharing};
    regions->n++;
}

void regions_add(regions_t *regions, const char *name, const flash_tensor_t *tensor,
                 const tensor_shape_t *shape) {
    regions_add_sharing(regions, name, tensor, shape, 0);
}

/* An array is a tensor of one row. */
static void add_row(regions_t *regions, const char *name, const void *data, int64_t n,
                    int64_t element_size, bool is_output) {
    const flash_tensor_t row = {.data = (void *)(uintptr_t)data};
    const tensor_shape_t shape = {.batch = 1,
                                  .seq = 1,
                                  .longest_seq = 1,
                                  .heads = 1,
                                  .d_head = n,
                                  .element_size = element_size,
                                  .is_output = is_output};
    if (data != NULL && n > 0)
        regions_add(regions, name, &row, &shape);
}

void regions_add_array(regions_t *regions, const char *name, const void *data, int64_t n,
                       int64_t element_size) {
    add_row(regions, name, data, n, element_size, false);
}

void regions_add_output_array(regions_t *regions, const char *name, void *data, int64_t n,
                              int64_t element_size) {
    add_row(regions, name, data, n, element_size, true);
}

static bool may_overlap(const region_t *a, const region_t *b) {
    return a->sharing != 0 && a->sharing == b->sharing;
}

/* Compares an output with all inputs, and with the outputs before it. */
static flash_status_t check_output(const regions_t *regions, int32_t i) {
    const region_t *a = &regions->list[i];
    for (int32_t j = 0; j < regions->n; j++) {
        const region_t *b = &regions->list[j];
        if ((b->shape.is_output && j >= i) || may_overlap(a, b))
            continue;
        FLASH_TRY(
            tensor_check_apart(a->name, &a->tensor, &a->shape, b->name, &b->tensor, &b->shape));
    }
    return FLASH_SUCCESS;
}

flash_status_t regions_check(const regions_t *regions) {
    FLASH_REQUIRE(regions->n <= REGIONS_MOST, FLASH_ERROR_INTERNAL,
                  "a call has %d tensors and arrays, and the list of them holds %d", regions->n,
                  REGIONS_MOST);
    for (int32_t i = 0; i < regions->n; i++)
        if (regions->list[i].shape.is_output)
            FLASH_TRY(check_output(regions, i));
    return FLASH_SUCCESS;
}
