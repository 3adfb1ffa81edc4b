/*
 * Devices: what a machine has, as plain facts that selection can also be given by a test.
 */
#ifndef FLASH_DEVICE_H
#define FLASH_DEVICE_H

#include "flashattn.h"

/* Facts about a device that decide which kernels it can run. */
typedef struct device {
    int32_t number; /* FLASH_DEVICE_... */
    uint32_t isa;   /* FLASH_ISA_... usable */
} device_t;

/* Describes the device with this number. INVALID_ARGUMENT, UNSUPPORTED, NO_DEVICE. */
flash_status_t device_describe(int32_t number, device_t *device);

/* What a CPU device lacks for a kernel family, as "AVX512 kernels need ..."; NULL: nothing. */
const char *device_lacks(const device_t *device, int32_t arch);

#endif
