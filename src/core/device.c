/*
 * This file puts devices into words, for messages.
 */
#include "core/device.h"

#include <inttypes.h>
#include <stdio.h>

void device_name(const device_t *device, char text[DEVICE_NAME_SIZE]) {
    if (device_is_cpu(device))
        snprintf(text, DEVICE_NAME_SIZE, "the CPU");
    else
        snprintf(text, DEVICE_NAME_SIZE, "CUDA device %" PRId32,
                 device->number - FLASH_DEVICE_CUDA);
}
