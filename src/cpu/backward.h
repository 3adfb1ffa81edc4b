/*
 * The backward pass on the CPU is an operation for dQ and one for dK and dV. Where a call wants all
 * three gradients, kernels of one family can compute them together: P and dS once, and five
 * products in place of seven. The results have the same bits.
 */
#ifndef FLASH_CPU_BACKWARD_H
#define FLASH_CPU_BACKWARD_H

#include "cpu/operation.h"

#include <stdbool.h>

extern const cpu_operation_t cpu_backward_dq;
extern const cpu_operation_t cpu_backward_dkv;

/* Says how many bytes of workspace, behind the begin, a call gains by if the kernels can compute
 * all gradients together; 0: they cannot. */
flash_status_t cpu_backward_joint_workspace(const flash_kernel_t *dq, const flash_kernel_t *dkv,
                                            const problem_t *problem, uint64_t *size);

/* Computes all gradients together if that pays and the workspace suffices. */
flash_status_t cpu_backward_run_joint(const flash_kernel_t *dq, const flash_kernel_t *dkv,
                                      const problem_t *problem, bool *is_done);

#endif
