/*
 * These are gradients for a vector instruction set, written once, over the primitives that tiled.h
 * lists. A task goes over blocks of B_c keys, and for each over the blocks of B_r packed rows that
 * see some of them:
 *
 *                B_c keys: K^T, V^T, K          for each block of keys
 *              +------------------+               pack K^T, V^T and K
 *      B_r     | S  = Q K^T       |               for each block of rows
 *      rows:   | dP = dO V^T      |                 load Q and dO
 *      Q, dO   | P, dS            | -> dQ += dS K   S, dP, P, dS, then the three products
 *              +------------------+               store dK and dV
 *                       |                       store dQ
 *                       v
 *              dK += dS^T Q, dV += P^T dO
 *
 * Operands are words (tiled/words.h): fp32, or pairs of bf16 where the instruction set multiplies
 * these. Then P and dS are rounded to bf16.
 *
 * A task of dQ has some blocks of rows and all keys, one of dK and dV a block of keys and all rows;
 * a joint task has all of both, and computes P and dS once for all three gradients. Every block has
 * its place in the sequence, whatever the task is, and what it gives is computed in the same way,
 * so that the kinds of tasks give the same bits.
 */
#ifndef FLASH_KERNELS_CPU_TILED_BACKWARD_H
#define FLASH_KERNELS_CPU_TILED_BACKWARD_H

#include "cpu/backward_kernel.h"
#include "cpu/gradient_parts.h"
#include "cpu/gradient_rows.h"
#include "cpu/seeing_rows.h"
#include "cpu/tiled.h"
#include "cpu/tiled/gradient_gather.h"
#include "cpu/tiled/gradient_products.h"
#include "cpu/tiled/gradient_scores.h"
#include "cpu/tiled/gradient_sums.h"

/* A task and what it computes. */
typedef struct gradient_task {
    const flash_config_t *config;
    const flash_params_t *p;
    const flash_gradients_t *g;
    const cpu_task_t *task;
    bool dq;
    bool dk;
    bool dv;
} gradient_task_t;

/* ---- A block of rows and a block of keys ---- */

/* Says whether some row sees some of the keys. */
static inline bool rows_see_some(const tile_scratch_t *seen, flash_range_t keys) {
    for (int64_t row = 0; row < seen->n_rows; row++)
        if (seen->begin[row] < keys.end && seen->end[row] > keys.begin)
            return true;
    return false;
}

/* Returns a block of the task's rows as a task, with all keys. */
static inline cpu_task_t task_of_block(const gradient_task_t *of, int64_t row_begin) {
    cpu_task_t block = *of->task;
    block.row_begin = row_begin;
    block.row_end = min64(row_begin + of->config->B_r, of->task->row_end);
    block.keys = (flash_range_t){0, block.sequence.len_k};
    return block;
}

/* Says whether the rows see some of the block's keys. */
static inline bool sees_keys(const gradient_task_t *of, const gradient_block_t *rows,
                             flash_range_t keys) {
    return rows_see_some(&rows->seen, keys) &&
           !skips_block(&rows->seen, of->p, &rows->task, keys, NULL);
}

/* Adds what a block of rows and a block of keys give. dq: where dQ of the rows begins. */
static inline void add_pair(const gradient_parts_t *parts, const gradient_task_t *of,
                            const gradient_pair_t *pair, float *dq) {
    sums_product_t dv = {parts->p_across, &pair->rows->d_o, &parts->dv, parts->dv.sum,
                         across_behind(&pair->rows->d_o, pair->rows)};
    sums_product_t dk = {parts->ds_across, &pair->rows->q, &parts->dk, parts->dk.sum,
                         across_behind(&pair->rows->q, pair->rows)};
    const int64_t n_keys = (int64_t)pair->keys.end - pair->keys.begin;
    gradient_scores(parts, pair);
    if (of->dk || of->dv)
        find_rows_of_tiles(parts, pair);
    if (of->dv)
        add_to_keys_of(parts, &dv, n_keys);
    if (of->dk)
        add_to_keys_of(parts, &dk, n_keys);
    if (of->dq)
        add_to_dq(parts, pair, dq);
}

/* Does so for the block of a task, whose rows are loaded here unless the task keeps them. */
static inline void add_block(const gradient_parts_t *parts, const gradient_task_t *of,
                             const cpu_task_t *task, flash_range_t keys) {
    const int32_t B_r = of->config->B_r;
    const int64_t row = of->dq ? task->row_begin - of->task->row_begin : 0;
    gradient_block_t rows = block_of_rows(&parts->rows, task, row, B_r);
    if (!of->dq)
        find_keys(&rows.seen, of->p, task);
    if (!sees_keys(of, &rows, keys))
        return;
    if (!of->dq) {
        load_block(&parts->rows, of->p, of->g, task, row, B_r);
        rows = block_of_rows(&parts->rows, task, row, B_r);
    } else {
        rows.n_next = min64(B_r, of->task->row_end - task->row_end);
    }
    const gradient_pair_t pair = pair_of(of->p, &rows, keys);
    add_pair(parts, of, &pair, parts->dq.sum + row * parts->dq.stride);
}

/* ---- A block of keys ---- */

/* Adds what the task's rows give. Parts of the sums end at whole numbers of blocks of the
 * sequence's rows. */
static inline void add_rows(gradient_parts_t *parts, const gradient_task_t *of, flash_range_t keys,
                            cpu_row_range_t rows) {
    const int64_t B_r = of->config->B_r, part_rows = GRADIENT_PART_BLOCKS * B_r;
    const int64_t n_keys = (int64_t)keys.end - keys.begin;
    for (int64_t begin = rows.begin / B_r * B_r; begin < rows.end; begin += B_r) {
        const cpu_task_t block = task_of_block(of, begin);
        add_block(parts, of, &block, keys);
        if ((begin + B_r) % part_rows == 0) {
            end_sums_part(&parts->dk, of->dk ? rows_of_keys(&parts->dk, n_keys) : 0);
            end_sums_part(&parts->dv, of->dv ? rows_of_keys(&parts->dv, n_keys) : 0);
        }
    }
}

/* Stores dK or dV of n keys, from `first` on, which are rows of the sums. */
static inline void store_rows_of_keys(const gradient_sums_t *sums, const gradient_task_t *of,
                                      const flash_gradient_t *gradient, float scale, int64_t first,
                                      int64_t n) {
    for (int64_t i = 0; i < n; i++)
        store_gradient(sums, i, scale, gradient, gradient_key_index(of->task, gradient, first + i));
}

/* Stores dK or dV of n keys, and turns sums that have columns for keys. */
static inline void store_sums_of_keys(const gradient_parts_t *parts, gradient_sums_t *sums,
                                      const gradient_task_t *of, const flash_gradient_t *gradient,
                                      float scale, flash_range_t keys) {
    const int64_t n = (int64_t)keys.end - keys.begin;
    const gradient_sums_t turned = {.sum = parts->turning,
                                    .stride = round_up(sums->columns, VEC_WIDTH),
                                    .columns = sums->columns};
    end_sums(sums, rows_of_keys(sums, n));
    if (!sums->is_turned) {
        store_rows_of_keys(sums, of, gradient, scale, keys.begin, n);
        return;
    }
    for (int64_t i = 0; i < n; i += VEC_WIDTH) {
        turn_sums(sums, i, &turned);
        store_rows_of_keys(&turned, of, gradient, scale, keys.begin + i, min64(VEC_WIDTH, n - i));
    }
}

static inline void store_keys(gradient_parts_t *parts, const gradient_task_t *of,
                              flash_range_t keys) {
    if (of->dk)
        store_sums_of_keys(parts, &parts->dk, of, &of->g->dk, of->p->softmax_scale, keys);
    if (of->dv)
        store_sums_of_keys(parts, &parts->dv, of, &of->g->dv, 1, keys);
}

/* Adds what a block of keys gives to dQ, and computes its dK and dV. */
static inline void add_keys(gradient_parts_t *parts, const gradient_task_t *of,
                            flash_range_t keys) {
    const int64_t n_keys = (int64_t)keys.end - keys.begin;
    cpu_row_range_t rows = cpu_seeing_rows(of->p, &of->task->sequence, keys);
    cpu_narrow_rows(&rows, of->task->row_begin, of->task->row_end);
    start_sums(&parts->dk, of->dk ? rows_of_keys(&parts->dk, n_keys) : 0);
    start_sums(&parts->dv, of->dv ? rows_of_keys(&parts->dv, n_keys) : 0);
    if (rows.begin < rows.end) {
        load_keys(parts, of->p, of->task, of->config->dtype, keys);
        add_rows(parts, of, keys, rows);
    }
    store_keys(parts, of, keys);
}

/* ---- A task ---- */

static inline void store_dq(gradient_parts_t *parts, const gradient_task_t *of) {
    const int64_t n_rows = of->task->row_end - of->task->row_begin;
    cpu_row_t row = cpu_row(of->p, of->task, 0);
    end_sums(&parts->dq, n_rows);
    for (int64_t r = 0; r < n_rows; r++, row = cpu_next_row(of->p, of->task, row))
        store_gradient(&parts->dq, r, of->p->softmax_scale, &of->g->dq,
                       cpu_row_index(of->task, &of->g->dq.stride, row));
}

/* Loads all rows of the task, which keeps them. */
static inline void load_all_rows(const gradient_parts_t *parts, const gradient_task_t *of) {
    const int32_t B_r = of->config->B_r;
    for (int64_t begin = of->task->row_begin; begin < of->task->row_end; begin += B_r) {
        const cpu_task_t task = task_of_block(of, begin);
        const int64_t row = begin - of->task->row_begin;
        const gradient_block_t rows = block_of_rows(&parts->rows, &task, row, B_r);
        find_keys(&rows.seen, of->p, &task);
        load_block(&parts->rows, of->p, of->g, &task, row, B_r);
    }
}

NEVER_INLINE void tiled_gradients(const gradient_task_t *of, void *scratch) {
    const cpu_task_t *task = of->task;
    const int64_t n_rows = task->row_end - task->row_begin, dq_rows = of->dq ? n_rows : 0;
    const int32_t B_c = of->config->B_c;
    const gradient_extent_t extent = gradient_extent(of->p, dq_rows);
    gradient_memory_t memory = {(uintptr_t)scratch, 0};
    gradient_parts_t parts = take_gradient_parts(&memory, of->config, head_dims_of(of->p), &extent);
    start_products();
    start_sums(&parts.dq, dq_rows);
    if (of->dq)
        load_all_rows(&parts, of);
    for (flash_range_t keys = task->keys; keys.begin < keys.end;) {
        const flash_range_t block = cpu_first_keys(keys, B_c);
        add_keys(&parts, of, block);
        if (block.end % (GRADIENT_PART_BLOCKS * B_c) == 0)
            end_sums_part(&parts.dq, dq_rows);
        keys.begin = block.end;
    }
    if (of->dq)
        store_dq(&parts, of);
    end_products();
}

static inline void tiled_backward_dq(const flash_config_t *config, const flash_params_t *p,
                                     const flash_gradients_t *g, const cpu_task_t *task,
                                     void *scratch) {
    const gradient_task_t of = {config, p, g, task, .dq = true};
    tiled_gradients(&of, scratch);
}

static inline void tiled_backward_dkv(const flash_config_t *config, const flash_params_t *p,
                                      const flash_gradients_t *g, const cpu_task_t *task,
                                      void *scratch) {
    const gradient_task_t of = {config,
                                p,
                                g,
                                task,
                                .dq = task->with_dq,
                                .dk = g->dk.data != NULL,
                                .dv = g->dv.data != NULL};
    tiled_gradients(&of, scratch);
}

#endif
