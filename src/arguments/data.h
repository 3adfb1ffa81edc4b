/*
 * These functions check what a call's pointers lead to: lengths, tensors, and outputs apart from
 * inputs.
 */
#ifndef FLASH_ARGUMENTS_DATA_H
#define FLASH_ARGUMENTS_DATA_H

#include "core/problem.h"
#include "flashattn.h"

/* Checks what arguments_read() has not: the tensors, and lengths in host memory. */
flash_status_t arguments_check_data(const flash_forward_args_t *checked, bool on_host,
                                    problem_t *problem);

/* Does the same for a backward call, whose `forward` is the checked one. */
flash_status_t arguments_check_backward_data(const flash_backward_args_t *checked, bool on_host,
                                             problem_t *problem);

#endif
