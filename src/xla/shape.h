/*
 * Shapes of XLA's buffers, which are dense and row-major.
 */
#ifndef FLASH_SHAPE_H
#define FLASH_SHAPE_H

#include "flashattn.h"

#include <stdbool.h>
#include <xla/ffi/api/c_api.h>

/* Fails unless a buffer, called `name` in the message, has these axes. */
flash_status_t shape_check(const XLA_FFI_Buffer *buffer, const char *name, int64_t n_axes,
                           const int64_t *lengths);

#define SHAPE_CHECK(buffer, name, ...)                                                             \
    shape_check(buffer, name, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t),                  \
                (int64_t[]){__VA_ARGS__})

bool shape_has_elements(const XLA_FFI_Buffer *buffer);

#endif
