/*
 * The arguments of flash_quantise() are copied and checked.
 */
#ifndef FLASH_ARGUMENTS_QUANTISE_ARGUMENTS_H
#define FLASH_ARGUMENTS_QUANTISE_ARGUMENTS_H

#include "flashattn.h"

/* Makes the checked copy of a caller's arguments, with defaults filled in. *n_tokens: those of the
 * batch, as far as the host knows them. */
flash_status_t arguments_read_quantise(const flash_quantise_args_t *args,
                                       flash_quantise_args_t *checked, int64_t *n_tokens);

#endif
