/*
 * One attention problem as the rest of the library sees it: validated, defaults filled in.
 */
#ifndef FLASH_PROBLEM_H
#define FLASH_PROBLEM_H

#include "common/params.h"

#include <stdbool.h>

typedef struct problem {
    flash_params_t params; /* what the kernel is told */
    int32_t dtype;
    int32_t device;
    int32_t features; /* FLASH_FEATURE_... bits that a kernel must have */
    int64_t total_q;  /* tokens of ragged tensors, where lengths in host memory were checked */
    int64_t total_k;
    bool has_output;      /* some row of O exists */
    bool batch_invariant; /* the choice of a kernel must not look at the batch */
    void *workspace;
    uint64_t workspace_size;
} problem_t;

#endif
