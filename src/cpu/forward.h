/*
 * The forward pass on the CPU.
 */
#ifndef FLASH_CPU_FORWARD_H
#define FLASH_CPU_FORWARD_H

#include "cpu/operation.h"

extern const cpu_operation_t cpu_forward;

#endif
