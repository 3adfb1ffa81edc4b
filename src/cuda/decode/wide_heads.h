/*
 * Heads of 257 to 512 columns have two families, of which this is what they share.
 */
#ifndef FLASH_CUDA_WIDE_HEADS_H
#define FLASH_CUDA_WIDE_HEADS_H

#include "cuda/decode/plan_decode.h"

#include <stdbool.h>

decode_plan_t plan_wide_heads(const flash_config_t *config, const problem_t *problem,
                              const device_t *device);

/* Says whether a family whose rows have fewer columns serves the head dimensions. */
bool serves_heads(const family_t *family, const problem_t *problem);

#endif
