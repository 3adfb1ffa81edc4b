/*
 * The CUDA devices of this machine. A build without CUDA has the same functions (absent.c), which
 * refuse.
 */
#ifndef FLASH_CUDA_DEVICE_H
#define FLASH_CUDA_DEVICE_H

#include "core/device.h"
#include "flashattn.h"

/* Describes FLASH_DEVICE_CUDA_CURRENT or FLASH_DEVICE_CUDA + n. UNSUPPORTED in a build without
 * CUDA, NO_DEVICE without a driver or that device. */
flash_status_t cuda_device_describe(int32_t number, device_t *device);

/* Fills the processor's name; "" when it cannot be had. */
void cuda_device_name(const device_t *device, char name[64]);

#endif
