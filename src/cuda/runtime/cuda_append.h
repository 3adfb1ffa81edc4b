/*
 * flash_kv_append() runs here on CUDA devices.
 */
#ifndef FLASH_CUDA_APPEND_H
#define FLASH_CUDA_APPEND_H

#include "core/device.h"
#include "flashattn.h"
#include "kernels/common/append_params.h"

/* Enqueues the append kernel on the stream; the arguments are checked. */
flash_status_t cuda_append(const append_params_t *params, const device_t *device,
                           flash_stream_t stream);

#endif
