/*
 * A scope makes the device of a call current, and afterwards the caller's device again.
 */
#ifndef FLASH_CUDA_SCOPE_H
#define FLASH_CUDA_SCOPE_H

#include "core/device.h"
#include "flashattn.h"

#include <stdbool.h>

typedef struct cuda_scope {
    int previous; /* ordinal of the device that was current */
    bool switched;
} cuda_scope_t;

flash_status_t cuda_scope_enter(const device_t *device, cuda_scope_t *scope);

/* Makes the previous device current again, after cuda_scope_enter() has succeeded. */
void cuda_scope_leave(const cuda_scope_t *scope);

#endif
