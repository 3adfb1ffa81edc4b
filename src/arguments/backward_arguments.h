/*
 * The arguments of a backward call are those of the forward call, and gradients.
 */
#ifndef FLASH_ARGUMENTS_BACKWARD_ARGUMENTS_H
#define FLASH_ARGUMENTS_BACKWARD_ARGUMENTS_H

#include "core/problem.h"
#include "flashattn.h"

/* Copies the caller's arguments, checks sizes, types and flags, and makes the problem, whose
 * workspace is that of the backward call. In the copies each tensor names its type, and
 * checked->forward is checked_forward. Strides of tensors, and what pointers lead to, are not
 * checked. */
flash_status_t arguments_read_backward(const flash_backward_args_t *args,
                                       flash_backward_args_t *checked,
                                       flash_forward_args_t *checked_forward, problem_t *problem);

#endif
