/*
 * This file compares shapes of XLA's buffers.
 */
#include "xla/shape.h"

#include "core/status.h"

flash_status_t shape_check(const XLA_FFI_Buffer *buffer, const char *name, int64_t n_axes,
                           const int64_t *lengths) {
    FLASH_REQUIRE(buffer->rank == n_axes, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s has %lld axes, not %lld", name, (long long)buffer->rank, (long long)n_axes);
    for (int64_t axis = 0; axis < n_axes; axis++)
        FLASH_REQUIRE(buffer->dims[axis] == lengths[axis], FLASH_ERROR_INVALID_ARGUMENT,
                      "%s has length %lld along axis %lld, not %lld", name,
                      (long long)buffer->dims[axis], (long long)axis, (long long)lengths[axis]);
    return FLASH_SUCCESS;
}

bool shape_has_elements(const XLA_FFI_Buffer *buffer) {
    for (int64_t axis = 0; axis < buffer->rank; axis++)
        if (buffer->dims[axis] == 0)
            return false;
    return true;
}
