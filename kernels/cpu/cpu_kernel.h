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
#include "cpu/amx/layout.h"
#include "cpu/cpu_scratch.h"
#include "flashattn.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the thread reads after a task, so that the task can bring the first rows of it nearer. */
typedef struct cpu_ahead {
    flash_range_t keys; /* empty: nothing is known of what comes next */
    int32_t head_kv;
} cpu_ahead_t;

/* A block of rows of one sequence and one K/V head, or the same rows of some K/V heads, against a
 * range of their keys. */
typedef struct cpu_task {
    flash_sequence_t sequence;
    int32_t batch_index;
    int32_t head_kv;   /* the first one */
    int32_t n_heads;   /* at most cpu_most_heads() */
    int64_t row_begin; /* packed rows; at most cpu_most_split_rows() */
    int64_t row_end;
    flash_range_t keys; /* the row sees its visible keys within this range */
    float *o_partial;   /* [row_end - row_begin, d_head] fp32, contiguous; NULL: write O and LSE */
    float *lse_partial; /* [row_end - row_begin]; with o_partial */
    int64_t partial_rows; /* from the partials of one head to those of the next */
    cpu_ahead_t ahead;
    void *packed; /* the sequence's K and V of this head, shared by the tasks; may be NULL */
    bool pack;    /* the task is to pack its keys, a whole block of B_c, and nothing else */
} cpu_task_t;

/*
 * Computes the task: O (normalised) and LSE of each of its rows, over the keys that the row sees
 * within task->keys; a row that sees none gets O = 0 and LSE = -infinity. Writes to params->o and
 * params->lse, or to the task's partials. scratch is cpu_scratch_size() bytes, 64-byte aligned,
 * uninitialised.
 */
typedef void (*cpu_kernel_t)(const flash_params_t *params, const cpu_task_t *task, void *scratch);

/* Whether a vector family multiplies pairs of bf16: its VEC_DOTS_BF16 (tiled.h). */
static inline bool cpu_multiplies_pairs(int32_t arch) {
    return arch == FLASH_ARCH_AVX512_BF16 || arch == FLASH_ARCH_NEON_BF16;
}

/* Bytes of an element of K and V as the vector kernels pack them. */
static inline int64_t cpu_packed_element_size(int32_t arch) {
    return cpu_multiplies_pairs(arch) ? 2 : 4;
}

/* Scratch bytes that a kernel needs for one task of at most so many rows; a multiple of 64. */
static inline uint64_t cpu_scratch_size(const flash_config_t *config, int64_t n_rows,
                                        int64_t d_head) {
    const bool is_amx = config->arch == FLASH_ARCH_AMX; /* few rows go the tiled way, within B_r */
    const int64_t rows = cpu_scratch_rows(config->B_r, n_rows);
    const uint64_t tiled = tiled_scratch_size(is_amx ? config->B_r : rows, config->B_c, d_head,
                                              cpu_packed_element_size(config->arch));
    if (!is_amx)
        return tiled;
    const uint64_t amx = amx_scratch_size(config, rows, d_head);
    const uint64_t decode = amx_decode_scratch_size(config, d_head);
    const uint64_t most = amx > decode ? amx : decode; /* a task runs in one of the ways */
    return most > tiled ? most : tiled;
}

/* Vector tasks of at most so many rows read K and V where they lie; packing would cost more. Where
 * keys are split, they are many, and those in place may be of several heads, near the order of
 * memory. */
enum { CPU_FEW_ROWS = 12, CPU_FEW_ROWS_SPLIT = 24, CPU_FEW_ROWS_SPLIT_FP32 = 16 };

static inline int64_t cpu_few_rows(const flash_config_t *config, bool is_split) {
    if (!is_split || config->arch == FLASH_ARCH_AMX)
        return CPU_FEW_ROWS;
    return config->dtype == FLASH_DTYPE_FP32 ? CPU_FEW_ROWS_SPLIT_FP32 : CPU_FEW_ROWS_SPLIT;
}

/* A task may have a part of B_r rows that is a multiple of this: all that is done to a row is the
 * same then, and so are its bits. */
enum { CPU_ROW_UNIT = 24 };

static inline int32_t cpu_row_unit(int32_t arch) {
    return arch == FLASH_ARCH_AMX ? (int32_t)AMX_SQUARE : (int32_t)CPU_ROW_UNIT;
}

/* Rows of a task that splits the keys: packing a block of keys for a few blocks of rows costs less
 * than the way of all packed keys to memory and back. */
enum { CPU_SPLIT_BLOCKS = 4 };

static inline int64_t cpu_most_split_rows(const flash_config_t *config) {
    const int64_t rows = (int64_t)config->B_r * CPU_SPLIT_BLOCKS;
    if (config->arch == FLASH_ARCH_REFERENCE)
        return config->B_r;
    return config->arch == FLASH_ARCH_AMX && rows > AMX_ROWS_MAX ? AMX_ROWS_MAX : rows;
}

/* Rows of any other task. The AMX family multiplies faster than packed keys come from beyond a
 * level 2 cache, and several blocks of rows read them once. */
static inline int32_t cpu_most_task_rows(const flash_config_t *config) {
    return config->arch == FLASH_ARCH_AMX ? amx_most_task_rows(config) : config->B_r;
}

/* Whether a task that splits the keys reads them where they lie. */
static inline bool cpu_reads_in_place(const flash_config_t *config, int64_t n_rows,
                                      int64_t d_head) {
    if (config->arch == FLASH_ARCH_AMX && amx_decodes(config, n_rows, d_head))
        return true;
    return config->arch != FLASH_ARCH_REFERENCE && n_rows <= cpu_few_rows(config, true);
}

/* Keys in place that lie a multiple of this apart share few sets of a level 1 cache: x86 families
 * read them in steps (tiled/few_rows.h). */
enum { CPU_FEW_SETS_BYTES = 1024 };

/* K/V heads of n_rows each that such a task may have: B_r rows in all. */
static inline int64_t cpu_most_heads(const flash_config_t *config, int64_t n_rows, int64_t d_head) {
    const bool in_place = cpu_reads_in_place(config, n_rows, d_head);
    return in_place && n_rows > 0 && n_rows < config->B_r ? config->B_r / n_rows : 1;
}

/* Whether the tasks of a head with so many rows want their keys packed by tasks before them. */
static inline bool cpu_shares_packed(const flash_config_t *config, int64_t n_rows) {
    switch (config->arch) {
    case FLASH_ARCH_REFERENCE:
        return false;
    case FLASH_ARCH_AMX:
        return n_rows > AMX_MIN_ROWS;
    default:
        return n_rows > config->B_r; /* more than one task */
    }
}

/* Bytes of a head's packed keys, block after block of B_c; a multiple of 64. */
static inline uint64_t cpu_packed_size(const flash_config_t *config, int64_t d_head,
                                       int64_t seqlen_k) {
    if (config->arch == FLASH_ARCH_AMX)
        return amx_packed_size(config, d_head, seqlen_k);
    return tiled_packed_size(config->B_c, d_head, seqlen_k, cpu_packed_element_size(config->arch));
}

#endif
