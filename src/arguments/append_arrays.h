/*
 * The arrays of flash_kv_append() are checked if they lie in host memory.
 */
#ifndef FLASH_ARGUMENTS_APPEND_ARRAYS_H
#define FLASH_ARGUMENTS_APPEND_ARRAYS_H

#include "flashattn.h"
#include "kernels/common/append_params.h"

/* Requires lengths in order, a place for each new token, and rows of the rotary tables for each
 * token that turns. Sets params->n_ids to what the places reach of the page table. */
flash_status_t arguments_check_append_arrays(append_params_t *params);

#endif
