/*
 * What every CPU kernel is: a function that computes one task. src/launch_cpu.c cuts a problem
 * into tasks, hands each its thread's scratch memory, and merges the tasks that share rows.
 *
 * Rows: the query heads of a K/V head's group are packed into one axis, so that K and V are read
 * once for all of them. Packed row r of K/V head g is query r / group of head
 * g * group + r % group; a sequence has len_q * group rows a K/V head.
 */
#ifndef FLASH_KERNELS_CPU_KERNEL_H
#define FLASH_KERNELS_CPU_KERNEL_H

#include "common/params.h"
#include "common/sequence.h"

#include <stddef.h>
#include <stdint.h>

/* A block of rows of one sequence and one K/V head, against a range of its keys. */
typedef struct cpu_task {
    flash_sequence_t sequence;
    int32_t batch_index;
    int32_t head_kv;
    int64_t row_begin; /* packed rows; at most B_r of them */
    int64_t row_end;
    flash_range_t keys; /* the row sees its visible keys within this range */
    float *o_partial;   /* [row_end - row_begin, d_head] fp32, contiguous; NULL: write O and LSE */
    float *lse_partial; /* [row_end - row_begin]; with o_partial */
} cpu_task_t;

/*
 * Computes the task: O (normalised) and LSE of each of its rows, over the keys that the row sees
 * within task->keys; a row that sees none gets O = 0 and LSE = -infinity. Writes to params->o and
 * params->lse, or to the task's partials. scratch is cpu_scratch_size() bytes, 64-byte aligned,
 * uninitialised.
 */
typedef void (*cpu_kernel_t)(const flash_params_t *params, const cpu_task_t *task, void *scratch);

/* Scratch bytes that a kernel of tile B_r x B_c needs for one task; a multiple of 64. */
static inline uint64_t cpu_scratch_size(int32_t B_r, int32_t B_c, int64_t d_head) {
    const uint64_t d = ((uint64_t)d_head + 15) / 16 * 16;
    const uint64_t r = ((uint64_t)B_r + 15) / 16 * 16;
    const uint64_t c = ((uint64_t)B_c + 15) / 16 * 16;
    const uint64_t q = r * d, o = r * d, scores = r * c, k = c * d, v = c * d, rows = 8 * r;
    return (q + o + scores + k + v + rows) * sizeof(float);
}

#endif
