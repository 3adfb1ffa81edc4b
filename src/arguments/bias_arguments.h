/*
 * ALiBi slopes and the mask go from the caller's arguments to the problem.
 */
#ifndef FLASH_ARGUMENTS_BIAS_ARGUMENTS_H
#define FLASH_ARGUMENTS_BIAS_ARGUMENTS_H

#include "arguments/regions.h"
#include "flashattn.h"
#include "kernels/common/params.h"

#include <stdbool.h>

/* Reads the call's slopes and mask, if there are any, into params->bias. No array is read. Returns
 * INVALID_ARGUMENT, or UNSUPPORTED for a field of a newer caller. */
flash_status_t arguments_read_bias(const flash_forward_args_t *checked, flash_params_t *params);

/* Says whether the call has slopes or a mask. Before there is memory, the data of a mask is NULL.
 */
bool arguments_have_bias(const flash_params_t *params);

/* Refuses slopes and masks that have no data or whose offsets overflow, and adds them to the call's
 * regions. */
flash_status_t arguments_check_bias(const flash_params_t *params, int64_t total_q,
                                    regions_t *regions);

/* Requires slopes and a mask that are aligned to their elements. */
flash_status_t arguments_check_bias_alignments(const flash_params_t *params);

#endif
