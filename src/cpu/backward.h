/*
 * The backward pass on the CPU is an operation for dQ and one for dK and dV.
 */
#ifndef FLASH_CPU_BACKWARD_H
#define FLASH_CPU_BACKWARD_H

#include "cpu/operation.h"

extern const cpu_operation_t cpu_backward_dq;
extern const cpu_operation_t cpu_backward_dkv;

#endif
