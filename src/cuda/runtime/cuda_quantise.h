/*
 * flash_quantise() runs here on CUDA devices.
 */
#ifndef FLASH_CUDA_QUANTISE_H
#define FLASH_CUDA_QUANTISE_H

#include "core/device.h"
#include "flashattn.h"

/* Enqueues what quantises a tensor on the stream; the arguments are checked. */
flash_status_t cuda_quantise(const flash_quantise_args_t *args, const device_t *device,
                             flash_stream_t stream);

#endif
