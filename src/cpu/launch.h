/*
 * Kernels of CPU families are called on the threads of a call, in one way for all operations.
 */
#ifndef FLASH_CPU_LAUNCH_H
#define FLASH_CPU_LAUNCH_H

#include "config/family.h"

/* Rows whose operation has a cpu_operation_t (family_op_t.cpu) are called through these functions.
 * They ignore the device and the stream. */
extern const family_calls_t cpu_calls;

#endif
