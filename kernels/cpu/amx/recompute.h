/*
 * Rows that see infinity or NaN: computed once more, as in the AVX-512 family.
 */
#ifndef FLASH_KERNELS_CPU_AMX_RECOMPUTE_H
#define FLASH_KERNELS_CPU_AMX_RECOMPUTE_H

#include "cpu/amx/layout.h"
#include "cpu/avx512.h"

/* One row of the task. */
ALWAYS_INLINE void recompute_row(const flash_config_t *config, const flash_params_t *p,
                                 const cpu_task_t *task, int64_t row, void *scratch) {
    cpu_task_t alone = *task;
    alone.row_begin = task->row_begin + row;
    alone.row_end = alone.row_begin + 1;
    if (task->o_partial) {
        alone.o_partial = task->o_partial + row * p->d_head;
        alone.lse_partial = task->lse_partial + row;
    }
    avx512_forward(config, p, &alone, scratch);
}

/* Those whose bits are set: bit r of bad[s] is row r of strip s. */
ALWAYS_INLINE void recompute_rows(const flash_config_t *config, const flash_params_t *p,
                                  const cpu_task_t *task, const uint32_t *bad, void *scratch) {
    const int64_t n_rows = task->row_end - task->row_begin;
    for (int64_t row = 0; row < n_rows; row++)
        if (bad[row / AMX_SQUARE] >> row % AMX_SQUARE & 1)
            recompute_row(config, p, task, row, scratch);
}

#endif
