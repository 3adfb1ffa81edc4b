/*
 * The SM80 family computes gradients in these ways.
 */
#ifndef FLASH_CUDA_SM80_BACKWARD_H
#define FLASH_CUDA_SM80_BACKWARD_H

#include "config/family.h"

extern const family_op_t sm80_backward_dq;
extern const family_op_t sm80_backward_dkv;

#endif
