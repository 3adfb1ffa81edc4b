/*
 * Checks of what lies behind a call's pointers: lengths, tensors, and that O is apart from all that
 * the call reads.
 */
#ifndef FLASH_ARGUMENTS_DATA_H
#define FLASH_ARGUMENTS_DATA_H

#include "core/problem.h"
#include "flashattn.h"

/* Checks what arguments_read() left out: the tensors, and the lengths where they are in host
 * memory. */
flash_status_t arguments_check_data(const flash_forward_args_t *own, bool on_host,
                                    problem_t *problem);

#endif
