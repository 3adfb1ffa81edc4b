/*
 * Sinks are treated as a tensor of one row, whose elements are the heads.
 */
#include "arguments/sinks.h"

#include "core/status.h"

flash_status_t arguments_check_sinks_apart(const float *sinks, int64_t n_heads, const char *name,
                                           const flash_tensor_t *output,
                                           const tensor_shape_t *shape) {
    const flash_tensor_t row = {.data = (void *)(uintptr_t)sinks};
    const tensor_shape_t row_shape = {
        .batch = 1, .seq = 1, .heads = 1, .d_head = n_heads, .element_size = sizeof *sinks};
    return sinks == NULL ? FLASH_SUCCESS
                         : tensor_check_apart(name, output, shape, "sinks", &row, &row_shape);
}
