/*
 * Dropout goes from the caller's arguments to the problem.
 */
#ifndef FLASH_ARGUMENTS_DROPOUT_ARGUMENTS_H
#define FLASH_ARGUMENTS_DROPOUT_ARGUMENTS_H

#include "arguments/regions.h"
#include "flashattn.h"
#include "kernels/common/params.h"

/* Reads the call's dropout, if there is any, into params->dropout. No pointer is followed. Returns
 * INVALID_ARGUMENT, or UNSUPPORTED for what has no dropout and for a field of a newer caller. */
flash_status_t arguments_read_dropout(const flash_forward_args_t *checked, flash_params_t *params);

/* Adds what is added to the seed and the offset to the call's regions. */
void arguments_add_dropout(const flash_params_t *params, regions_t *regions);

/* Requires a seed and an offset that are aligned to their 8 bytes. */
flash_status_t arguments_check_dropout_alignments(const flash_params_t *params);

#endif
