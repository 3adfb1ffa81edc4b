/*
 * The SM90 family computes gradients in these ways.
 */
#ifndef FLASH_CUDA_SM90_BACKWARD_H
#define FLASH_CUDA_SM90_BACKWARD_H

#include "config/family.h"

extern const family_op_t sm90_backward_dq;
extern const family_op_t sm90_backward_dkv;

/* Returns what kernels read, as the parameters of a forward pass: Q, K and V, with dO as O, and
 * rows of whole chunks. The call has begun: its copies are in place. */
flash_params_t sm90_backward_inputs(const problem_t *problem);

/* Returns how many heads of a launch are handed out together: as many as have what passes by in L2
 * at a time, or more to have enough tiles; all where dS passes by, which nobody reads again. */
int32_t sm90_backward_section(const flash_config_t *config, const flash_params_t *p,
                              const flash_section_t *launched);

#endif
