/*
 * A CPU kernel of the forward pass computes one task. src/cpu/plan.c cuts a problem into tasks and
 * decides how each reads its keys; src/cpu/call.c hands them to workers, each with scratch memory
 * of its own, and merges the partial results of tasks that share rows.
 *
 * The query heads of a K/V head's group are packed into one axis of rows, so that K and V are read
 * once for all of them. Packed row r of K/V head g is query r / group of head
 * g * group + r % group; a sequence has len_q * group rows per K/V head.
 */
#ifndef FLASH_KERNELS_CPU_KERNEL_H
#define FLASH_KERNELS_CPU_KERNEL_H

#include "common/params.h"
#include "common/quant_block.h"
#include "common/sequence.h"
#include "cpu/cpu_family.h"
#include "cpu/tuning.h"
#include "flashattn.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A way is how a task reads its keys. The host chooses it (src/cpu/way.c), the kernel follows. */
typedef enum cpu_way {
    CPU_WAY_ROW_BY_ROW = 0, /* in place, for one row after the other: the reference family */
    CPU_WAY_PACK,           /* packs a block of B_c keys, and does nothing else */
    CPU_WAY_SHARED,         /* reads what tasks of CPU_WAY_PACK packed for the head */
    CPU_WAY_PRIVATE,        /* packs a block, uses it, then packs the next one over it */
    CPU_WAY_BLOCKS,         /* in place, a block of keys of one head at a time */
    CPU_WAY_STEPS,          /* in place, a few keys of several heads at a time */
    CPU_WAY_SINGLE_ROWS,    /* as CPU_WAY_STEPS, not prefetched: one row of fp32 per head */
    CPU_WAY_DECODE          /* in place, on tile registers: the AMX family */
} cpu_way_t;

/* Says whether vector kernels decode keys of these types of K and V to fp32 before they multiply
 * them, a block of one head at a time. */
static inline bool cpu_decodes_keys(int32_t dtype, int32_t v_dtype) {
    return dtype == FLASH_DTYPE_LATENT_E4M3 || has_quant_blocks(dtype) || v_dtype != dtype;
}

/* This is what the thread most likely reads after a task. The task prefetches its first rows. */
typedef struct cpu_prefetch {
    flash_range_t keys; /* empty: nothing is known of what comes next */
    int32_t head_kv;
} cpu_prefetch_t;

/* A task is a block of rows of one sequence and one K/V head, or the same rows of some K/V heads,
 * against a range of their keys. */
typedef struct cpu_task {
    cpu_way_t way;
    flash_sequence_t sequence;
    int32_t batch_index;
    int32_t head_kv;   /* the first one */
    int32_t n_heads;   /* 1 unless keys are read in place; B_r rows in all */
    int64_t row_begin; /* packed rows */
    int64_t row_end;
    flash_range_t keys; /* each row sees its visible keys within this range */
    float *o_partial; /* [row_end - row_begin, d_head_v] fp32, contiguous; NULL: write O and LSE */
    float *lse_partial;   /* [row_end - row_begin]; with o_partial */
    int64_t partial_rows; /* from the partials of one head to those of the next */
    cpu_prefetch_t prefetch;
    void *packed; /* CPU_WAY_PACK and CPU_WAY_SHARED: K and V of this head of the sequence */
    int32_t packed_block; /* which block of B_c keys, counted from the sequence's first key, is the
                           * first one there */
    bool with_dq;         /* a task of dK and dV computes dQ, too; it has all rows and keys */
} cpu_task_t;

/*
 * Computes O (normalised) and LSE of each row of the task, over the keys that the row sees within
 * task->keys; a row that sees none gets O = 0 and LSE = -infinity. Writes to params->o and
 * params->lse, or to the task's partial results. scratch has the family's scratch_size() bytes, is
 * aligned to 64 and uninitialised.
 */
typedef void (*cpu_kernel_t)(const flash_params_t *params, const cpu_task_t *task, void *scratch);

#endif
