/*
 * What launching a kernel is for each CUDA family; the device is current.
 */
#ifndef FLASH_LAUNCH_FAMILIES_H
#define FLASH_LAUNCH_FAMILIES_H

#include "core/device.h"
#include "flashattn.h"
#include "core/problem.h"

flash_status_t launch_sm80(const void *symbol, const flash_config_t *config,
                           const problem_t *problem, flash_stream_t stream);

flash_status_t launch_sm90(const void *symbol, const flash_config_t *config,
                           const problem_t *problem, const device_t *device, flash_stream_t stream);

#endif
