/*
 * These functions describe the CUDA devices of this machine. In a build without CUDA these
 * functions fail (absent.c).
 */
#ifndef FLASH_CUDA_DEVICE_H
#define FLASH_CUDA_DEVICE_H

#include "core/device.h"
#include "flashattn.h"

/* Describes FLASH_DEVICE_CUDA_CURRENT or FLASH_DEVICE_CUDA + n. Returns UNSUPPORTED in a build
 * without CUDA, NO_DEVICE without a driver or without that device. */
flash_status_t cuda_device_describe(int32_t number, device_t *device);

/* Writes the device's name, or "" if the runtime does not tell it. */
void cuda_device_name(const device_t *device, char name[64]);

#endif
