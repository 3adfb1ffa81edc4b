/*
 * These functions check the tensors that a backward call has beside those of its forward call.
 */
#ifndef FLASH_ARGUMENTS_GRADIENTS_H
#define FLASH_ARGUMENTS_GRADIENTS_H

#include "arguments/regions.h"
#include "arguments/tensor.h"
#include "core/problem.h"
#include "flashattn.h"

/* The shapes of a call's tensors. */
typedef struct data_shapes {
    tensor_shape_t q, k, v, o;
} data_shapes_t;

/* Checks them, requires O and LSE, and adds what the call reads and writes to its regions. */
flash_status_t arguments_check_gradients(const flash_backward_args_t *checked,
                                         const flash_gradients_t *gradients,
                                         const data_shapes_t *shapes, regions_t *regions);

/* Requires the tokens of ragged tensors to be at most those that the caller says. */
flash_status_t arguments_check_totals(const flash_backward_args_t *checked,
                                      const problem_t *problem);

#endif
