/*
 * A problem is made of the caller's arguments. Every refusal that concerns only them is here.
 */
#ifndef FLASH_ARGUMENTS_FORWARD_H
#define FLASH_ARGUMENTS_FORWARD_H

#include "core/problem.h"
#include "flashattn.h"

/*
 * Copies the caller's arguments, checks sizes, types and flags, and makes the problem. In the copy
 * each tensor names its type. Strides of tensors, and what pointers lead to, are not checked.
 */
flash_status_t arguments_read(const flash_forward_args_t *args, flash_forward_args_t *checked,
                              problem_t *problem);

#endif
