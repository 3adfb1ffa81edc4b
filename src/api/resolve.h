/*
 * Every call on attention begins here: from its arguments to the kernel that will run.
 */
#ifndef FLASH_RESOLVE_H
#define FLASH_RESOLVE_H

#include "core/device.h"
#include "core/problem.h"
#include "flashattn.h"
#include "select/select.h"

#include <stdbool.h>

/* A call whose arguments are read and whose kernel is known. */
typedef struct resolved {
    flash_forward_args_t args;
    problem_t problem;
    device_t device;
    const flash_kernel_t *kernel;
    mixed_rows_t mixed_rows;         /* the problem's */
    bool is_named;                   /* the caller or FLASHATTN_CONFIG names the kernel */
    bool traced;                     /* FLASHATTN_TRACE is on */
    bool explained;                  /* reason is filled in */
    char reason[SELECT_REASON_SIZE]; /* why this kernel was chosen */
} resolved_t;

/* Reads the arguments and finds the kernel for an operation (FLASH_OP_...): `kernel` unless it is
 * NULL, else that of FLASHATTN_CONFIG if it names one of the operation, else the library's choice.
 * r is all zeros, but for `explained` if the caller wants the reason, which takes longer than the
 * choice. FLASHATTN_TRACE turns it on. */
flash_status_t resolve(const flash_forward_args_t *args, int32_t op, const flash_kernel_t *kernel,
                       resolved_t *r);

/* Does the same for arguments that are read: r->args and r->problem. A call that runs kernels of
 * several operations finds one for each. */
flash_status_t resolve_kernel(int32_t op, const flash_kernel_t *kernel, resolved_t *r);

#endif
