/*
 * The arguments of flash_kv_append() are copied, checked, and made into what the kernels see.
 */
#ifndef FLASH_ARGUMENTS_APPEND_ARGUMENTS_H
#define FLASH_ARGUMENTS_APPEND_ARGUMENTS_H

#include "flashattn.h"
#include "kernels/common/append_params.h"

/* Makes the checked copy of a caller's arguments, and the parameters of kernels. Pointers are
 * followed only if they lead to memory of the host. */
flash_status_t arguments_read_append(const flash_kv_append_args_t *args,
                                     flash_kv_append_args_t *checked, append_params_t *params);

#endif
