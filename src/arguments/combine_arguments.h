/*
 * The arguments of flash_combine() are copied and checked.
 */
#ifndef FLASH_ARGUMENTS_COMBINE_ARGUMENTS_H
#define FLASH_ARGUMENTS_COMBINE_ARGUMENTS_H

#include "flashattn.h"

/* Makes the checked copy of a caller's arguments. */
flash_status_t arguments_read_combine(const flash_combine_args_t *args,
                                      flash_combine_args_t *checked);

#endif
