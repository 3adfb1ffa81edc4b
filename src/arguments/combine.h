/*
 * The arguments of flash_combine().
 */
#ifndef FLASH_ARGUMENTS_COMBINE_H
#define FLASH_ARGUMENTS_COMBINE_H

#include "flashattn.h"

/* The checked copy of a caller's combine arguments. */
flash_status_t arguments_read_combine(const flash_combine_args_t *args,
                                      flash_combine_args_t *checked);

#endif
