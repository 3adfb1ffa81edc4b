/*
 * The rotary embedding of flash_kv_append() is read from the caller's struct.
 */
#ifndef FLASH_ARGUMENTS_APPEND_ROTARY_H
#define FLASH_ARGUMENTS_APPEND_ROTARY_H

#include "arguments/regions.h"
#include "flashattn.h"
#include "kernels/common/append_params.h"

/* Reads the call's rotary embedding, if there is one, into params->rotary. The types, sizes and
 * tokens of the call are checked already. No array is read. */
flash_status_t arguments_read_rotary(const flash_kv_append_args_t *checked,
                                     append_params_t *params);

/* Adds its tables and arrays to the call's regions. */
void arguments_add_rotary(const append_params_t *params, regions_t *regions);

#endif
