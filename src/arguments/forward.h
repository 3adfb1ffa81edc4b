/*
 * From the caller's arguments to a problem: every refusal that concerns the arguments alone.
 */
#ifndef FLASH_ARGUMENTS_FORWARD_H
#define FLASH_ARGUMENTS_FORWARD_H

#include "core/problem.h"
#include "flashattn.h"

/*
 * Copies the caller's arguments, checks sizes, types and flags, and makes the problem of them; in
 * the copy each tensor names its type. The tensors' strides and whatever lies behind a pointer are
 * not looked at.
 */
flash_status_t arguments_read(const flash_forward_args_t *args, flash_forward_args_t *own,
                              problem_t *problem);

#endif
