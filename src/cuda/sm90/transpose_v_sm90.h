/*
 * A kernel transposes V of e4m3, into the workspace, ahead of an SM90 kernel that multiplies it as
 * such. This file says how much workspace that takes, and what the transposed V looks like to TMA.
 * It calls no device.
 */
#ifndef FLASH_CUDA_TRANSPOSE_V_SM90_H
#define FLASH_CUDA_TRANSPOSE_V_SM90_H

#include "cuda/tma/tma_tensor.h"
#include "flashattn.h"
#include "kernels/common/params.h"

/* Returns the bytes of workspace, 0 if the kernel multiplies V as it is. Smaller batches and
 * lengths need no more. */
uint64_t transpose_v_sm90_workspace(const flash_config_t *config, const flash_params_t *params);

/* Returns the first address of the workspace that the transposed V may have. */
void *transpose_v_sm90_place(void *workspace);

/* Returns the transposed V, whose axes are the keys of a panel, columns of V, panels, and the K/V
 * heads of all entries. */
tma_tensor_t transpose_v_sm90_tensor(const flash_params_t *params, const void *transposed);

#endif
