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
    bool traced;                     /* FLASHATTN_TRACE is on */
    bool explained;                  /* reason is filled in */
    char reason[SELECT_REASON_SIZE]; /* why this kernel was chosen */
} resolved_t;

/* Reads the arguments and finds the kernel for an operation (FLASH_OP_...): `kernel` unless it is
 * NULL, else that of FLASHATTN_CONFIG if it names one of the operation, else the library's choice.
 * It gives the reason if FLASHATTN_TRACE is on. */
flash_status_t resolve(const flash_forward_args_t *args, int32_t op, const flash_kernel_t *kernel,
                       resolved_t *r);

/* Does the same, and gives the reason, which takes about as long as the choice. */
flash_status_t resolve_and_explain(const flash_forward_args_t *args, int32_t op,
                                   const flash_kernel_t *kernel, resolved_t *r);

#endif
