/*
 * These functions describe the devices of this machine.
 */
#ifndef FLASH_API_DEVICE_H
#define FLASH_API_DEVICE_H

#include "core/device.h"
#include "flashattn.h"

/* Describes the device with this number, or returns INVALID_ARGUMENT, UNSUPPORTED or NO_DEVICE. */
flash_status_t device_describe(int32_t number, device_t *device);

/* Describes the device of a call of attention, with the multiprocessors that the call may use. */
flash_status_t device_describe_for(const flash_forward_args_t *args, device_t *device);

/* Refuses a stream for the CPU, which has none. */
flash_status_t device_check_stream(const device_t *device, flash_stream_t stream);

#endif
