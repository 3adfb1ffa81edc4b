/*
 * Rows of gradients are stored here, in any type, and added to what is there if the call says so.
 */
#ifndef FLASH_KERNELS_CPU_GRADIENT_ROWS_H
#define FLASH_KERNELS_CPU_GRADIENT_ROWS_H

#include "common/gradients.h"
#include "cpu/convert.h"
#include "cpu/rows.h"

/* Stores column i of the row that begins at index. Only a gradient of fp32 adds. */
static inline void gradient_store(const flash_gradient_t *gradient, int64_t index, int64_t i,
                                  double value) {
    const double before =
        gradient->adds ? (double)element_load(gradient->data, index + i, gradient->dtype) : 0;
    element_store(gradient->data, index + i, gradient->dtype, (float)(before + value));
}

/* Returns the index of the first element of a key's gradient. */
static inline int64_t gradient_key_index(const cpu_task_t *task, const flash_gradient_t *gradient,
                                         int64_t key) {
    const flash_kv_run_t run = cpu_key_run(task, key);
    return flash_kv_offset(&gradient->stride, &run, task->head_kv);
}

#endif
