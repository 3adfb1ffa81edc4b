/*
 * Scales of K and V of e4m3: what the caller's arguments say of them, and where they lie.
 */
#ifndef FLASH_ARGUMENTS_QUANT_H
#define FLASH_ARGUMENTS_QUANT_H

#include "arguments/tensor.h"
#include "flashattn.h"
#include "kernels/common/params.h"

/* Reads the call's scales, whose types are checked, into those of *params; none: as they are. Looks
 * at no array. INVALID_ARGUMENT, UNSUPPORTED (a newer caller's field). */
flash_status_t arguments_read_quant(const flash_forward_args_t *own, flash_params_t *params);

/* Requires offsets of scales within an int64 of bytes. */
flash_status_t arguments_check_scales(const flash_params_t *params);

/* Refuses scales that overlap an output, as tensor_check_apart() does. */
flash_status_t arguments_check_scales_apart(const flash_params_t *params, const char *name,
                                            const flash_tensor_t *output,
                                            const tensor_shape_t *shape);

/* Requires scales that are aligned to their elements. */
flash_status_t arguments_check_scale_alignments(const flash_params_t *params);

#endif
