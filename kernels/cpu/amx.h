/*
 * The AMX family multiplies bf16 on tile registers, sums in fp32, and computes exponentials with
 * AVX-512.
 *
 * K and V are packed once per head, by tasks of their own, for all tasks that attend. A task of
 * split keys packs its own blocks, or, with few rows, reads them in place. Rows that tiles would
 * waste and rows that see infinity or NaN are computed as in the AVX-512 family.
 */
#ifndef FLASH_KERNELS_CPU_AMX_H
#define FLASH_KERNELS_CPU_AMX_H

#include "cpu/avx512.h"
#include "cpu/avx512_few_rows.h"

#include "cpu/amx/attend.h"
#include "cpu/amx/load_store.h"
#include "cpu/amx/pack.h"
#include "cpu/amx_decode.h"
#include "cpu/mask_blocks.h"

/* ---- Infinity and NaN ---- */

/* Rows that tiles could not compute are bits, a word for each strip of one head, or for each of
 * several heads of one strip. */
enum { AMX_BAD_MAX = AMX_ROWS_MAX / AMX_DECODE_MIN_ROWS };

static inline bool row_sees(const amx_run_t *run, int64_t row, int32_t key) {
    const amx_scratch_t *t = run->t;
    const flash_range_t one = {key, key + 1};
    return t->begin[row] <= key && key < t->end[row] &&
           (run->bias->mask == NULL || cpu_mask_shows(run->bias, &t->bias_rows[row], one));
}

/* Sets the bits of the rows that see a bad key of the square that begins with `key`. */
static inline void mark_rows(const amx_run_t *run, int32_t key, uint32_t bad_keys) {
    for (int64_t row = 0; row < run->t->n_rows; row++)
        for (int32_t i = 0; i < AMX_SQUARE; i++)
            if ((bad_keys >> i & 1) && row_sees(run, row, key + i))
                run->bad[row / AMX_SQUARE] |= 1u << row % AMX_SQUARE;
}

static inline void mark_rows_of_block(const amx_run_t *run, const amx_block_t *block, int32_t key,
                                      int32_t end) {
    for (int64_t j = 0; j < run->t->keys && key < end; j++, key += AMX_SQUARE)
        if (block->bad[j] != 0)
            mark_rows(run, key, block->bad[j]);
}

ALWAYS_INLINE void recompute_row(const flash_config_t *config, const flash_params_t *p,
                                 const cpu_task_t *task, int64_t row, void *scratch) {
    cpu_task_t row_task = *task;
    row_task.way = CPU_WAY_BLOCKS;
    row_task.row_begin = task->row_begin + row;
    row_task.row_end = row_task.row_begin + 1;
    if (task->o_partial) {
        row_task.o_partial = task->o_partial + row * p->d_head_v;
        row_task.lse_partial = task->lse_partial + row;
    }
    flash_avx512_few_rows(config, p, &row_task, scratch);
}

ALWAYS_INLINE void recompute_rows(const flash_config_t *config, const flash_params_t *p,
                                  const cpu_task_t *task, const uint32_t *bad, void *scratch) {
    const int64_t n_rows = task->row_end - task->row_begin;
    for (int64_t row = 0; row < n_rows; row++)
        if (bad[row / AMX_SQUARE] >> row % AMX_SQUARE & 1)
            recompute_row(config, p, task, row, scratch);
}

/* ---- Tasks ---- */

/* Returns the head dimensions, which are constants for rows of one head dimension. */
ALWAYS_INLINE head_dims_t row_dims(const flash_config_t *config, const flash_params_t *p) {
    const head_dims_t of_row = {config->d_head, config->d_head};
    return config->d_head ? of_row : head_dims_of(p);
}

ALWAYS_INLINE void attend_shared(amx_run_t *run, const cpu_task_t *task, amx_terms_t terms,
                                 flash_range_t keys) {
    const amx_scratch_t *t = run->t;
    const int64_t first = keys.begin / t->block_keys - task->packed_block;
    const int64_t end = (keys.end + t->block_keys - 1) / t->block_keys - task->packed_block;
    run->key = task->packed_block * t->block_keys;
    for (int64_t i = first; i < end; i++) {
        const amx_block_t block = amx_block_at(t, run->packed, i);
        mark_rows_of_block(run, &block, run->key + (int32_t)i * t->block_keys, keys.end);
    }
    run->block = first;
    run->n_left = end - first;
    run_items(run, terms);
}

/* Says whether holes or a mask hide all that the task's rows see of a block. */
static inline bool hides_part(const amx_run_t *run, flash_range_t keys) {
    bool hides = run->bias->mask != NULL;
    if (cpu_holes_hide(cpu_holes_of(run->p, run->task, keys, &run->holes->entry[0]), keys))
        return true;
    for (int64_t strip = 0; hides && strip < run->t->n_strips; strip++)
        hides = hides_keys(run->t, run->bias, strip, keys);
    return hides;
}

ALWAYS_INLINE void attend_private(amx_run_t *run, const flash_params_t *p, const cpu_task_t *task,
                                  int32_t dtype, amx_terms_t terms, flash_range_t keys) {
    const amx_scratch_t *t = run->t;
    run->packed = t->block;
    for (; keys.begin < keys.end; keys.begin += t->block_keys) {
        const flash_range_t part = {keys.begin, min32(keys.begin + t->block_keys, keys.end)};
        if (hides_part(run, part))
            continue;
        const amx_block_t block = amx_block_at(t, run->packed, 0);
        pack_block(t, p, task, dtype, part, &block);
        mark_rows_of_block(run, &block, part.begin, part.end);
        run->key = part.begin;
        run->block = run->strip = 0;
        run->n_left = 1;
        run_items(run, terms);
    }
}

/* Computes the task on tile registers; terms is a constant. bad returns the rows that see infinity
 * or NaN, or are not sound (is_sound()): bit r of bad[s] is row r of strip s. */
ALWAYS_INLINE void attend_in_terms(const flash_config_t *config, const flash_params_t *p,
                                   const cpu_task_t *task, void *scratch, uint32_t *bad,
                                   const amx_terms_t terms) {
    const int32_t dtype = config->dtype;
    const head_dims_t dims = row_dims(config, p);
    const amx_scratch_t t =
        amx_divide_scratch(scratch, config, dims, terms, task->row_end - task->row_begin);
    strip_keys_t strips[AMX_STRIPS_MAX];
    const flash_range_t keys = find_strip_keys(&t, p, task, strips);
    if (terms.q == AMX_TERMS_MAX)
        pack_q_fp32(&t, p, task, bad);
    else
        pack_q(&t, p, task, dtype, bad);
    start_results(&t);
    amx_holes_t holes;
    amx_run_t run = {.t = &t,
                     .p = p,
                     .task = task,
                     .holes = &holes,
                     .strips = strips,
                     .rule = softmax_rule(p),
                     .bias = &p->bias,
                     .packed = task->packed,
                     .bad = bad};
    const unsigned control = tiles_configure();
    if (task->way == CPU_WAY_SHARED)
        attend_shared(&run, task, terms, keys);
    else
        attend_private(&run, p, task, dtype, terms, keys);
    tiles_release(control);
    store_results(&t, p, task, dtype, bad);
}

/* Computes the task with a Q of fp32, compiled apart from types that are more frequent. */
NEVER_INLINE void attend_wide_q_bf16(const flash_config_t *config, const flash_params_t *p,
                                     const cpu_task_t *task, void *scratch, uint32_t *bad) {
    flash_config_t constant = *config;
    constant.dtype = FLASH_DTYPE_BF16;
    attend_in_terms(&constant, p, task, scratch, bad, (amx_terms_t){1, 3});
}

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
    const head_dims_t dims = row_dims(config, p);
    const amx_scratch_t t = amx_divide_scratch(scratch, config, dims, amx_terms(config, p), 0);
    const int64_t index = task->keys.begin / t.block_keys - task->packed_block;
    const amx_block_t block = amx_block_at(&t, task->packed, index);
    if (cpu_nobody_sees(p, task, task->keys))
        memset(block.bad, 0, (size_t)t.keys * sizeof *block.bad);
    else
        pack_block(&t, p, task, config->dtype, task->keys, &block);
}

/* Computes the rows that tiles could not. bad has one word per head where there are several,
 * otherwise one per strip. */
ALWAYS_INLINE void recompute_heads(const flash_config_t *config, const flash_params_t *p,
                                   const cpu_task_t *task, const uint32_t *bad, void *scratch) {
    for (int32_t head = 0; head < task->n_heads; head++) {
        const cpu_task_t head_task = task_of_head(task, head, p->d_head_v);
        recompute_rows(config, p, &head_task, bad + head, scratch);
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
    case CPU_WAY_PRIVATE:
        amx_attend(config, params, task, scratch, bad);
        break;
    case CPU_WAY_DECODE:
        if (config->dtype != FLASH_DTYPE_BF16) /* a constant: no code of others */
            return;
        amx_decode(params, task, row_dims(config, params), scratch, bad);
        break;
    case CPU_WAY_BLOCKS:
    case CPU_WAY_STEPS:
        flash_avx512_few_rows(config, params, task, scratch);
        return;
    case CPU_WAY_ROW_BY_ROW: /* no way of this family */
    case CPU_WAY_SINGLE_ROWS:
        return;
    }
    recompute_heads(config, params, task, bad, scratch);
}

#endif
