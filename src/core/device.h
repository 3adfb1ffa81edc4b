/*
 * Devices are described by plain facts, which a test can make up.
 */
#ifndef FLASH_DEVICE_H
#define FLASH_DEVICE_H

#include "flashattn.h"

#include <stdbool.h>

/* The facts about a device that decide which kernels it can run. */
typedef struct device {
    int32_t number;   /* FLASH_DEVICE_CPU, or FLASH_DEVICE_CUDA + ordinal */
    uint32_t isa;     /* CPU: FLASH_ISA_... usable */
    bool amx_refused; /* CPU: the processor has AMX, but the system refuses it */
    bool isa_absent;  /* CPU: FLASHATTN_CPU_ISA names a family that the processor lacks */
    bool dots_pay;    /* CPU: see cpu_features_dots_pay() */

    int32_t ordinal; /* CUDA devices have this and all that follows */
    int32_t compute_capability;
    int32_t n_multiprocessors;       /* that a call may use */
    int32_t shared_memory_per_block; /* bytes, the most that a kernel can ask for */
} device_t;

/* Returns the kind of device in a device's number. */
static inline int32_t device_kind(int32_t number) {
    return number >> 16;
}

static inline bool device_is_cpu(const device_t *device) {
    return device->number == FLASH_DEVICE_CPU;
}

/* Leaves a CUDA device at most that number of multiprocessors; 0: all of its own. */
static inline void device_limit(device_t *device, int32_t n_multiprocessors) {
    if (n_multiprocessors > 0 && n_multiprocessors < device->n_multiprocessors)
        device->n_multiprocessors = n_multiprocessors;
}

enum { DEVICE_NAME_SIZE = 32 };

/* Writes which device it is: "the CPU", or "CUDA device 1". */
void device_name(const device_t *device, char text[DEVICE_NAME_SIZE]);

#endif
