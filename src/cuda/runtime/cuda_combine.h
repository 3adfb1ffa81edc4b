/*
 * flash_combine() runs here on CUDA devices.
 */
#ifndef FLASH_CUDA_COMBINE_H
#define FLASH_CUDA_COMBINE_H

#include "core/device.h"
#include "flashattn.h"

/* Enqueues the merging of partial results on the stream; the arguments are checked. */
flash_status_t cuda_combine(const flash_combine_args_t *args, const device_t *device,
                            flash_stream_t stream);

#endif
