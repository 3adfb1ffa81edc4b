/*
 * A CPU kernel of the backward pass computes one task. The task is that of the forward pass
 * (cpu_kernel.h), less what only that needs:
 *
 *   FLASH_OP_BACKWARD_DQ   packed rows row_begin ... row_end - 1 of a K/V head, over all keys
 *   FLASH_OP_BACKWARD_DKV  keys.begin ... keys.end - 1 of a K/V head, over all packed rows; with
 *                          with_dq, where the family has joint tasks (backward_family.h), those are
 *                          all keys, and dQ of all rows is computed, too
 *
 * src/cpu/backward_tasks.c cuts a problem into tasks, after src/cpu/row_sums.c has computed what
 * flash_gradients_t has of each row.
 */
#ifndef FLASH_KERNELS_CPU_BACKWARD_KERNEL_H
#define FLASH_KERNELS_CPU_BACKWARD_KERNEL_H

#include "common/gradients.h"
#include "cpu/backward_family.h"
#include "cpu/cpu_kernel.h"

/* Computes and writes the gradients of the task's rows, or keys, as far as they are wanted. scratch
 * has the bytes of cpu_backward_scratch_size(), is aligned to 64 and uninitialised. */
typedef void (*cpu_backward_kernel_t)(const flash_params_t *params,
                                      const flash_gradients_t *gradients, const cpu_task_t *task,
                                      void *scratch);

#endif
