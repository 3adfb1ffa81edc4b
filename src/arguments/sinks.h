/*
 * Attention sinks: one logit per query head, of calls of attention and of merging.
 */
#ifndef FLASH_ARGUMENTS_SINKS_H
#define FLASH_ARGUMENTS_SINKS_H

#include "arguments/tensor.h"
#include "flashattn.h"

/* Refuses sinks [n_heads] that overlap an output, as tensor_check_apart() does. NULL passes. */
flash_status_t arguments_check_sinks_apart(const float *sinks, int64_t n_heads, const char *name,
                                           const flash_tensor_t *output,
                                           const tensor_shape_t *shape);

#endif
