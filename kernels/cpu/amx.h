/*
 * The AMX family has bf16 operands in tile registers, fp32 results, and exponentials in AVX-512.
 *
 * K and V are packed once a head, by tasks of their own, and shared by the tasks that attend; a
 * task that splits the keys packs its own blocks, or reads them in place where it has few rows.
 * What tiles are no use for, and rows that see infinity or NaN, is computed as in the AVX-512
 * family.
 */
#ifndef FLASH_KERNELS_CPU_AMX_H
#define FLASH_KERNELS_CPU_AMX_H

#include "cpu/avx512.h"

#include "cpu/amx/attend.h"
#include "cpu/amx/load_store.h"
#include "cpu/amx/pack.h"
#include "cpu/amx_decode.h"

/* ---- Infinity and NaN ---- */

/* The rows that tiles could not compute are bits: a word for each strip of one head, or for each of
 * some heads that have one strip. */
enum { AMX_BAD_MAX = AMX_ROWS_MAX / AMX_DECODE_MIN_ROWS };

/* Sets the bits of the rows that see a bad key of a square that begins with `key`. */
static inline void mark_rows(const amx_scratch_t *t, int32_t key, uint32_t bad_keys,
                             uint32_t bad[AMX_STRIPS_MAX]) {
    for (int64_t row = 0; row < t->n_rows; row++)
        for (int32_t i = 0; i < AMX_SQUARE; i++)
            if ((bad_keys >> i & 1) && t->begin[row] <= key + i && key + i < t->end[row])
                bad[row / AMX_SQUARE] |= 1u << row % AMX_SQUARE;
}

static inline void mark_rows_of_block(const amx_scratch_t *t, const amx_block_t *block, int32_t key,
                                      int32_t end, uint32_t bad[AMX_STRIPS_MAX]) {
    for (int64_t j = 0; j < t->keys && key < end; j++, key += AMX_SQUARE)
        if (block->bad[j] != 0)
            mark_rows(t, key, block->bad[j], bad);
}

/* Computes one row of the task as the AVX-512 family does. */
ALWAYS_INLINE void recompute_row(const flash_config_t *config, const flash_params_t *p,
                                 const cpu_task_t *task, int64_t row, void *scratch) {
    cpu_task_t alone = *task;
    alone.way = CPU_WAY_BLOCKS;
    alone.row_begin = task->row_begin + row;
    alone.row_end = alone.row_begin + 1;
    if (task->o_partial) {
        alone.o_partial = task->o_partial + row * p->d_head;
        alone.lse_partial = task->lse_partial + row;
    }
    tiled_attend(config, p, &alone, scratch, false);
}

ALWAYS_INLINE void recompute_rows(const flash_config_t *config, const flash_params_t *p,
                                  const cpu_task_t *task, const uint32_t *bad, void *scratch) {
    const int64_t n_rows = task->row_end - task->row_begin;
    for (int64_t row = 0; row < n_rows; row++)
        if (bad[row / AMX_SQUARE] >> row % AMX_SQUARE & 1)
            recompute_row(config, p, task, row, scratch);
}

/* ---- Tasks ---- */

/* Attends to all keys of the task, from the blocks that the head's tasks share. */
ALWAYS_INLINE void attend_shared(amx_run_t *run, amx_terms_t terms, flash_range_t keys) {
    const amx_scratch_t *t = run->t;
    const int64_t first = keys.begin / t->block_keys;
    const int64_t end = (keys.end + t->block_keys - 1) / t->block_keys;
    for (int64_t i = first; i < end; i++) {
        const amx_block_t block = amx_block_at(t, run->packed, i);
        mark_rows_of_block(t, &block, (int32_t)i * t->block_keys, keys.end, run->bad);
    }
    run->block = first;
    run->n_left = end - first;
    run_items(run, terms);
}

/* Attends to block after block, each packed by the task itself. */
ALWAYS_INLINE void attend_own(amx_run_t *run, const flash_params_t *p, const cpu_task_t *task,
                              int32_t dtype, amx_terms_t terms, flash_range_t keys) {
    const amx_scratch_t *t = run->t;
    run->packed = t->block;
    for (; keys.begin < keys.end; keys.begin += t->block_keys) {
        const flash_range_t part = {keys.begin, min32(keys.begin + t->block_keys, keys.end)};
        const amx_block_t block = amx_block_at(t, run->packed, 0);
        pack_block(t, p, task, dtype, part, &block);
        mark_rows_of_block(t, &block, part.begin, part.end, run->bad);
        run->key = part.begin;
        run->block = run->strip = 0;
        run->n_left = 1;
        run_items(run, terms);
    }
}

/* Computes the task on tiles.
 * bad: the rows that see infinity or NaN, or are not sound (is_sound()): bit r of bad[s] is row r
 * of strip s. terms: a constant. */
ALWAYS_INLINE void attend_in_terms(const flash_config_t *config, const flash_params_t *p,
                                   const cpu_task_t *task, void *scratch, uint32_t *bad,
                                   const amx_terms_t terms) {
    const int32_t dtype = config->dtype;
    const int64_t d = config->d_head ? config->d_head : p->d_head;
    const amx_scratch_t t =
        amx_divide_scratch(scratch, config, d, terms, task->row_end - task->row_begin);
    strip_keys_t strips[AMX_STRIPS_MAX];
    const flash_range_t keys = find_strip_keys(&t, p, task, strips);
    if (terms.q == AMX_TERMS_MAX)
        pack_q_fp32(&t, p, task, bad);
    else
        pack_q(&t, p, task, dtype, bad);
    start_results(&t);
    amx_run_t run = {
        .t = &t, .strips = strips, .rule = softmax_rule(p), .packed = task->packed, .bad = bad};
    const unsigned control = tiles_configure();
    if (task->way == CPU_WAY_SHARED)
        attend_shared(&run, terms, keys);
    else
        attend_own(&run, p, task, dtype, terms, keys);
    tiles_release(control);
    store_results(&t, p, task, dtype, bad);
}

/* This takes a Q of fp32 beside keys of bf16, apart from the code of the calls that are more. */
NEVER_INLINE void attend_wide_q_bf16(const flash_config_t *config, const flash_params_t *p,
                                     const cpu_task_t *task, void *scratch, uint32_t *bad) {
    flash_config_t constant = *config;
    constant.dtype = FLASH_DTYPE_BF16;
    attend_in_terms(&constant, p, task, scratch, bad, (amx_terms_t){1, 3});
}

/* This takes a Q of fp32 beside keys of fp16. */
NEVER_INLINE void attend_wide_q_fp16(const flash_config_t *config, const flash_params_t *p,
                                     const cpu_task_t *task, void *scratch, uint32_t *bad) {
    flash_config_t constant = *config;
    constant.dtype = FLASH_DTYPE_FP16;
    attend_in_terms(&constant, p, task, scratch, bad, (amx_terms_t){2, 3});
}

ALWAYS_INLINE void amx_attend(const flash_config_t *config, const flash_params_t *p,
                              const cpu_task_t *task, void *scratch, uint32_t *bad) {
    const int32_t dtype = config->dtype, terms = amx_terms_of(dtype);
    if (p->q_dtype == dtype)
        attend_in_terms(config, p, task, scratch, bad, (amx_terms_t){terms, terms});
    else if (dtype == FLASH_DTYPE_BF16 && p->q_dtype == FLASH_DTYPE_FP32)
        attend_wide_q_bf16(config, p, task, scratch, bad);
    else if (dtype == FLASH_DTYPE_FP16 && p->q_dtype == FLASH_DTYPE_FP32)
        attend_wide_q_fp16(config, p, task, scratch, bad);
}

ALWAYS_INLINE void amx_pack(const flash_config_t *config, const flash_params_t *p,
                            const cpu_task_t *task, void *scratch) {
    const int64_t d = config->d_head ? config->d_head : p->d_head;
    const amx_scratch_t t = amx_divide_scratch(scratch, config, d, amx_terms(config, p), 0);
    const amx_block_t block = amx_block_at(&t, task->packed, task->keys.begin / t.block_keys);
    pack_block(&t, p, task, config->dtype, task->keys, &block);
}

/* Computes the rows that the tiles could not. bad: of each head (amx_attend(), amx_decode()). */
ALWAYS_INLINE void recompute_heads(const flash_config_t *config, const flash_params_t *p,
                                   const cpu_task_t *task, const uint32_t *bad, void *scratch) {
    for (int32_t head = 0; head < task->n_heads; head++) {
        const cpu_task_t one = task_of_head(task, head, p->d_head);
        recompute_rows(config, p, &one, bad + head, scratch);
    }
}

ALWAYS_INLINE void amx_forward(const flash_config_t *config, const flash_params_t *params,
                               const cpu_task_t *task, void *scratch) {
    uint32_t bad[AMX_BAD_MAX];
    switch (task->way) {
    case CPU_WAY_PACK:
        amx_pack(config, params, task, scratch);
        return;
    case CPU_WAY_SHARED:
    case CPU_WAY_OWN:
        amx_attend(config, params, task, scratch, bad);
        break;
    case CPU_WAY_DECODE:
        if (config->dtype != FLASH_DTYPE_BF16) /* a constant: no code of others */
            return;
        amx_decode(params, task, config->d_head ? config->d_head : params->d_head, scratch, bad);
        break;
    case CPU_WAY_BLOCKS:
    case CPU_WAY_STEPS:
        tiled_attend(config, params, task, scratch, false);
        return;
    case CPU_WAY_ROW_BY_ROW: /* no way of this family */
    case CPU_WAY_LONE_ROWS:
        return;
    }
    recompute_heads(config, params, task, bad, scratch);
}

#endif
