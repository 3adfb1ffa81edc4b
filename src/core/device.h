/*
 * Devices: what a machine has, as plain facts that selection can also be given by a test.
 */
#ifndef FLASH_DEVICE_H
#define FLASH_DEVICE_H

#include "flashattn.h"

#include <stdbool.h>

/* Facts about a device that decide which kernels it can run. */
typedef struct device {
    int32_t number;   /* FLASH_DEVICE_CPU, or FLASH_DEVICE_CUDA + ordinal */
    uint32_t isa;     /* CPU: FLASH_ISA_... usable */
    bool amx_refused; /* CPU: the processor has AMX, the system does not permit it */
    bool isa_absent;  /* CPU: FLASH_CPU_ISA names a family that the processor lacks */
    bool dots_pay;    /* CPU: a product of bf16 pairs takes no longer than one of fp32 */

    int32_t ordinal; /* CUDA, and all below */
    int32_t compute_capability;
    int32_t n_multiprocessors;
    int32_t shared_memory_per_block; /* bytes, with opt-in */
} device_t;

/* Returns the kind of device in a device's number. */
static inline int32_t device_kind(int32_t number) {
    return number >> 16;
}

static inline bool device_is_cpu(const device_t *device) {
    return device->number == FLASH_DEVICE_CPU;
}

#endif
