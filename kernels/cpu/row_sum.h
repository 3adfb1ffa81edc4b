/*
 * The backward pass needs of each row of Q: D, the sum of dO * O, less what the gradient of LSE
 * brings, and the logarithm of the sum of its weights, that of the sink included.
 */
#ifndef FLASH_KERNELS_CPU_ROW_SUM_H
#define FLASH_KERNELS_CPU_ROW_SUM_H

#include "common/gradients.h"
#include "common/params.h"
#include "common/sequence.h"

/* A row of Q: a query of a head. */
typedef struct q_row {
    flash_sequence_t sequence;
    int32_t batch_index;
    int32_t head;
    int64_t query;
} q_row_t;

/* Writes the row's row_d and row_log_sum. Returns its part of the gradient of the head's sink. */
double cpu_sum_row(const flash_params_t *params, const flash_gradients_t *gradients,
                   const q_row_t *row);

#endif
