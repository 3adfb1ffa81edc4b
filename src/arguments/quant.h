/*
 * The scales of K, V and Q of e4m3 go from the caller's arguments to the problem.
 */
#ifndef FLASH_ARGUMENTS_QUANT_H
#define FLASH_ARGUMENTS_QUANT_H

#include "arguments/regions.h"
#include "flashattn.h"
#include "kernels/common/params.h"

/* Reads the call's scales, if there are any, into those of *params. The types are checked; no array
 * is read. Returns INVALID_ARGUMENT, or UNSUPPORTED for a field of a newer caller. */
flash_status_t arguments_read_quant(const flash_forward_args_t *checked, flash_params_t *params);

/* Requires the CPU for scales of pages, which no kernel of attention for CUDA devices takes. */
flash_status_t arguments_check_device_of_page_scales(const flash_forward_args_t *checked);

/* Requires offsets of K's and V's scales within an int64 of bytes, and adds the scales to the
 * call's regions. */
flash_status_t arguments_check_scales(const flash_params_t *params, regions_t *regions);

/* Does the same with those of Q, whose shape this is. */
flash_status_t arguments_check_q_scales(const flash_params_t *params, const tensor_shape_t *q,
                                        regions_t *regions);

/* Requires scales that are aligned to their elements. */
flash_status_t arguments_check_scale_alignments(const flash_params_t *params);

#endif
