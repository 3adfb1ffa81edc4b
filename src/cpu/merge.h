/*
 * This merges the partial results of a K/V head whose keys were split.
 */
#ifndef FLASH_CPU_MERGE_H
#define FLASH_CPU_MERGE_H

#include "cpu/plan.h"

/* The partial results of a head: all its rows, for one split after the other. */
typedef struct cpu_partials {
    const float *o;   /* [n_splits, n_rows, d_head_v] */
    const float *lse; /* [n_splits, n_rows] */
} cpu_partials_t;

/* Writes O of every row of the head, and LSE unless params->lse is NULL. */
void cpu_merge_splits(const flash_params_t *params, const cpu_cut_t *cut, int32_t batch_index,
                      int32_t head_kv, const cpu_partials_t *partials);

#endif
