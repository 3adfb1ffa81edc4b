/*
 * This is tiled attention for a vector instruction set, written once. A family's header (avx512.h,
 * ...) defines the primitives below and includes this file; the instruction set itself stays there.
 *
 * A task's rows are cut into tiles of TILE_ROWS, its keys into blocks of B_c. For each block it
 * computes scores S = Q K^T, the softmax of each row over exactly the keys that it sees, and O += P
 * V. The task's way (cpu_kernel.h) says how it reads the block:
 *
 *   packed    CPU_WAY_SHARED, CPU_WAY_PRIVATE: K is packed transposed and V as it is, in words
 *             (words.h); one register-blocked micro-kernel (multiply_tile) computes both products
 *   in place  CPU_WAY_BLOCKS, CPU_WAY_STEPS, CPU_WAY_SINGLE_ROWS: K and V are read in their own
 *             type, and the task may have several heads (few_rows.h)
 *
 * Two things hold always. No K or V is read but what a row of the task sees. What a row does not
 * see never enters its O: it is multiplied by zero at most, and only where it is finite (0 * NaN is
 * NaN).
 *
 * The primitives are these:
 *   vec_t, VEC_WIDTH          a vector of fp32, and how many
 *   TILE_ROWS, TILE_VECS      rows and vectors of the micro-kernel's accumulators
 *   DOT_ROWS                  rows of the dot-product micro-kernel's accumulators: 6, times 4 keys,
 *                             or 4, times 2 keys (in_place_scores.h)
 *   vec_zero, vec_set1, vec_add, vec_sub, vec_mul, vec_div, vec_fma (a * b + c)
 *   vec_max                   either operand may win where one is NaN
 *   vec_select_less           a < b ? x : y, lane by lane (NaN: y)
 *   vec_any_less              a < b in some lane
 *   vec_abs, vec_exp2         2^x, 0 below 2^-125; exact for 0; keeps NaN
 *   vec_reduce_add, vec_reduce_max
 *   vec_sum4                  sums of four vectors, to four consecutive floats
 *   vec_transpose             VEC_WIDTH vectors, in place
 *   vec_load, vec_store       VEC_WIDTH elements of a type, any alignment
 *   vec_load_first, vec_store_first  only the first n < VEC_WIDTH elements; the others read as 0.
 *                             Nothing is stored in e4m3, and what is loaded of it is 2^8 times too
 *                             small (e4m3.h)
 *   vec_load_e4m3             2 VEC_WIDTH elements of e4m3, likewise
 *   vec_load_bytes            VEC_WIDTH signed bytes
 *   vec_load_nibbles          the low or the high four bits of VEC_WIDTH bytes, less 8
 *   vec_set1_fp16             an fp16, in every lane
 *   VEC_SPLITS_BF16           1: there are the next two, which cost less than widening in order
 *   vec_split_bf16            2 VEC_WIDTH elements, the even ones and the odd ones
 *   vec_join                  from that order to the elements' own
 *   VEC_STEP_BYTES            of K or V of a step (tuning.h); 0: there are no steps
 *   VEC_SINGLE_ROW_STEP_BYTES        the same with one row of fp32 per head; 0: as for other rows
 *   vec_keep                  x where the lane's bit is 1, the lowest first; else 0
 *   calls_t, CALLS            a vector of 64-bit lanes, and how many: 4 or 8
 *   CALLS_TOGETHER            vectors of calls of Philox that are computed together
 *   calls_set1, calls_load, calls_add
 *   calls_multiply            products of the lower halves of lanes
 *   calls_mix                 a >> 32 ^ b ^ c
 *   calls_kept                CALLS / 4 patches of dropout: words of keys 0 ... 7, those of keys 8
 *                             ... 15, and a threshold of 16 bits: a bit for each key in the order
 *                             of keys, 1 where 16 bits of the lower half are not below it
 *   VEC_DOTS_BF16             1: there are the next ones; K and V are packed in bf16
 *   vec_dot_bf16              c + a * b summed over pairs of bf16, lane by lane
 *   vec_load_bf16             the first n of 2 VEC_WIDTH elements; the others read as 0
 *   vec_zip_bf16              the elements of two vectors in turns, VEC_WIDTH pairs to a vector
 *   vec_mix_bf16              the same in an order of columns that costs less
 *   vec_unmix                 from that order to the columns' own
 *   vec_store_bf16            VEC_WIDTH elements
 *   vec_bf16_along            two vectors rounded to bf16, one behind the other
 *   vec_bf16_across           two vectors rounded to bf16, their elements in turns
 */
#ifndef FLASH_KERNELS_CPU_TILED_H
#define FLASH_KERNELS_CPU_TILED_H

#include "cpu/mask_blocks.h"
#include "cpu/tiled/accumulate.h"
#include "cpu/tiled/few_rows.h"
#include "cpu/tiled/load_store.h"
#include "cpu/tiled/pack.h"
#include "cpu/tiled/pack_pages.h"
#include "cpu/tiled/scores.h"
#include "cpu/tiled/softmax.h"
#include "cpu/tiled/totals.h"

_Static_assert(VECTOR_ROW_UNIT % TILE_ROWS == 0 && (int)VECTOR_ROW_UNIT > (int)FEW_ROWS,
               "parts of a block of rows have its tiles, and packed keys as well");

ALWAYS_INLINE tile_keys_t keys_at(const cpu_task_t *task, int32_t dtype, const void *data,
                                  const flash_strides_t *stride, flash_range_t keys) {
    const flash_kv_run_t run = cpu_key_run(task, keys.begin);
    const int64_t first = flash_kv_offset(stride, &run, task->head_kv);
    const tile_keys_t from = {element_at(data, first, dtype), stride->seq};
    return from;
}

/* ---- A block of keys ---- */

/* Packs K, V or both, of a type that is a constant at each call. */
ALWAYS_INLINE void pack_keys_of(const tile_scratch_t *t, const flash_params_t *p,
                                const cpu_task_t *task, int32_t dtype, flash_range_t keys,
                                packed_parts_t parts) {
    if (cpu_is_paged(p)) {
        pack_keys_of_pages(t, p, task, dtype, keys, parts);
        return;
    }
    const tile_keys_t k = keys_at(task, dtype, p->k, &p->k_stride, keys);
    const tile_keys_t v = keys_at(task, dtype, p->v, &p->v_stride, keys);
    if (parts.k)
        pack_k(t, dtype, &k, keys.end - keys.begin);
    if (parts.v)
        pack_v(t, dtype, &v, keys.end - keys.begin);
}

NEVER_INLINE void pack_fp32(const tile_scratch_t *t, const flash_params_t *p,
                            const cpu_task_t *task, flash_range_t keys, packed_parts_t parts) {
    pack_keys_of(t, p, task, FLASH_DTYPE_FP32, keys, parts);
}

NEVER_INLINE void pack_fp16(const tile_scratch_t *t, const flash_params_t *p,
                            const cpu_task_t *task, flash_range_t keys, packed_parts_t parts) {
    pack_keys_of(t, p, task, FLASH_DTYPE_FP16, keys, parts);
}

NEVER_INLINE void pack_bf16(const tile_scratch_t *t, const flash_params_t *p,
                            const cpu_task_t *task, flash_range_t keys, packed_parts_t parts) {
    pack_keys_of(t, p, task, FLASH_DTYPE_BF16, keys, parts);
}

NEVER_INLINE void pack_e4m3(const tile_scratch_t *t, const flash_params_t *p,
                            const cpu_task_t *task, flash_range_t keys, packed_parts_t parts) {
    pack_keys_of(t, p, task, FLASH_DTYPE_E4M3, keys, parts);
}

NEVER_INLINE void pack_latent(const tile_scratch_t *t, const flash_params_t *p,
                              const cpu_task_t *task, flash_range_t keys, packed_parts_t parts) {
    pack_keys_of(t, p, task, FLASH_DTYPE_LATENT_E4M3, keys, parts);
}

NEVER_INLINE void pack_q8_0(const tile_scratch_t *t, const flash_params_t *p,
                            const cpu_task_t *task, flash_range_t keys, packed_parts_t parts) {
    pack_keys_of(t, p, task, FLASH_DTYPE_Q8_0, keys, parts);
}

NEVER_INLINE void pack_q4_0(const tile_scratch_t *t, const flash_params_t *p,
                            const cpu_task_t *task, flash_range_t keys, packed_parts_t parts) {
    pack_keys_of(t, p, task, FLASH_DTYPE_Q4_0, keys, parts);
}

static inline void pack_parts(const tile_scratch_t *t, const flash_params_t *p,
                              const cpu_task_t *task, int32_t dtype, flash_range_t keys,
                              packed_parts_t parts) {
    DTYPES_KNOWN(7);
    if (has_kernel_of(FLASH_DTYPE_FP32) && dtype == FLASH_DTYPE_FP32)
        pack_fp32(t, p, task, keys, parts);
    else if (keys_are(dtype, FLASH_DTYPE_FP16))
        pack_fp16(t, p, task, keys, parts);
    else if (keys_are(dtype, FLASH_DTYPE_BF16))
        pack_bf16(t, p, task, keys, parts);
    else if (keys_are(dtype, FLASH_DTYPE_E4M3))
        pack_e4m3(t, p, task, keys, parts);
    else if (keys_are(dtype, FLASH_DTYPE_LATENT_E4M3))
        pack_latent(t, p, task, keys, parts);
    else if (keys_are(dtype, FLASH_DTYPE_Q8_0))
        pack_q8_0(t, p, task, keys, parts);
    else if (keys_are(dtype, FLASH_DTYPE_Q4_0))
        pack_q4_0(t, p, task, keys, parts);
}

static inline void pack_keys(const tile_scratch_t *t, const flash_params_t *p,
                             const cpu_task_t *task, int32_t dtype, flash_range_t keys) {
    const bool same = p->v_dtype == dtype;
    pack_parts(t, p, task, dtype, keys, (packed_parts_t){true, same});
    if (!same)
        pack_parts(t, p, task, p->v_dtype, keys, (packed_parts_t){false, true});
}

NEVER_INLINE void attend_packed(const tile_scratch_t *t, const flash_params_t *p,
                                const cpu_task_t *task, flash_range_t block,
                                const cpu_holes_t *holes) {
    const values_t values = {t->v, *t->v_is_finite != 0};
    score_packed(t, block);
    softmax(t, p, task, block, holes);
    accumulate(t, &values, block);
}

/* ---- A task's keys, block after block ---- */

/* Attends to the blocks that the head's tasks share, which begin at multiples of B_c. */
static inline void attend_blocks_shared(tile_scratch_t *t, const flash_params_t *p,
                                        const cpu_task_t *task, int32_t B_c, flash_range_t keys) {
    keys.begin = keys.begin / B_c * B_c;
    results_prefetch_t prefetch = results_prefetch(t, p, task, keys, B_c);
    cpu_holes_t memory;
    while (keys.begin < keys.end) {
        const flash_range_t block = cpu_first_keys(keys, B_c);
        prefetch_results(&prefetch);
        use_packed_block(t, task->packed, block.begin / B_c - task->packed_block);
        const cpu_holes_t *holes = cpu_holes_of(p, task, block, &memory);
        if (!skips_block(t, p, task, block, holes))
            attend_packed(t, p, task, block, holes);
        end_block(t, block, PART_BLOCKS_PACKED * B_c);
        keys.begin = block.end;
    }
}

static inline void attend_blocks_private(const tile_scratch_t *t, const flash_params_t *p,
                                         const cpu_task_t *task, int32_t dtype, int32_t B_c,
                                         flash_range_t keys) {
    results_prefetch_t prefetch = results_prefetch(t, p, task, keys, B_c);
    cpu_holes_t memory;
    while (keys.begin < keys.end) {
        const flash_range_t block = cpu_first_keys(keys, B_c);
        prefetch_results(&prefetch);
        const cpu_holes_t *holes = cpu_holes_of(p, task, block, &memory);
        if (!skips_block(t, p, task, block, holes)) {
            pack_keys(t, p, task, dtype, block);
            attend_packed(t, p, task, block, holes);
        }
        end_block(t, block, PART_BLOCKS_PACKED * B_c);
        keys.begin = block.end;
    }
}

/* ---- The kernels of all configurations ---- */

static inline void tiled_pack(const flash_config_t *config, const flash_params_t *p,
                              const cpu_task_t *task, void *scratch) {
    const head_dims_t dims = head_dims_of(p);
    tile_scratch_t t = divide_scratch(scratch, config->B_r, config->B_c, dims, 0, 1);
    if (cpu_nobody_sees(p, task, task->keys))
        return;
    use_packed_block(&t, task->packed, task->keys.begin / config->B_c - task->packed_block);
    pack_keys(&t, p, task, config->dtype, task->keys);
}

/* Loads the rows of all heads; pairs: keys are loaded by load_pair(). Returns the keys that any row
 * sees, in all heads the same. */
static inline flash_range_t gather_rows(const tile_scratch_t *t, const flash_params_t *p,
                                        const cpu_task_t *task, int32_t dtype, bool pairs) {
    flash_range_t keys = {0, 0};
    for (int32_t head = 0; head < task->n_heads; head++) {
        const cpu_task_t head_task = task_of_head(task, head, t->d_v);
        const tile_scratch_t rows = rows_of_head(t, head);
        keys = find_keys(&rows, p, &head_task);
        gather_q(&rows, p, &head_task, dtype, pairs);
    }
    start_rows(t);
    return keys;
}

static inline void store_heads(const tile_scratch_t *t, const flash_params_t *p,
                               const cpu_task_t *task, int32_t dtype) {
    for (int32_t head = 0; head < task->n_heads; head++) {
        const cpu_task_t head_task = task_of_head(task, head, t->d_v);
        const tile_scratch_t rows = rows_of_head(t, head);
        store_rows(&rows, p, &head_task, dtype);
    }
}

/* Attends to the task's keys, as its way says. */
static inline void attend_blocks(tile_scratch_t *t, const flash_config_t *config,
                                 const flash_params_t *p, const cpu_task_t *task,
                                 flash_range_t keys) {
    const int32_t dtype = config->dtype, B_c = config->B_c;
    switch (task->way) {
    case CPU_WAY_SHARED:
        attend_blocks_shared(t, p, task, B_c, keys);
        add_parts(t);
        break;
    case CPU_WAY_PRIVATE:
        attend_blocks_private(t, p, task, dtype, B_c, keys);
        add_parts(t);
        break;
    case CPU_WAY_BLOCKS:
    case CPU_WAY_STEPS:
    case CPU_WAY_SINGLE_ROWS:
        attend_few_rows(t, p, task, dtype, B_c, keys);
        break;
    case CPU_WAY_ROW_BY_ROW: /* no way of a vector family */
    case CPU_WAY_DECODE:
    case CPU_WAY_PACK: /* tiled_pack() */
        break;
    }
}

static inline void tiled_attend(const flash_config_t *config, const flash_params_t *p,
                                const cpu_task_t *task, void *scratch) {
    const int32_t dtype = config->dtype;
    const int64_t n_rows = task->row_end - task->row_begin;
    const bool in_place = task->way != CPU_WAY_SHARED && task->way != CPU_WAY_PRIVATE;
    const int32_t columns = in_place ? min32(config->B_c, in_place_keys(task->way)) : config->B_c;
    tile_scratch_t t = divide_scratch(scratch, cpu_scratch_rows(config->B_r, n_rows), columns,
                                      head_dims_of(p), n_rows, task->n_heads);
    const bool pairs = in_place && !decodes_keys(p, dtype);
    const flash_range_t keys = gather_rows(&t, p, task, dtype, pairs);
    attend_blocks(&t, config, p, task, keys);
    store_heads(&t, p, task, dtype);
}

NEVER_INLINE void tiled_forward(const flash_config_t *config, const flash_params_t *p,
                                const cpu_task_t *task, void *scratch) {
    const bool scales = keys_are(config->dtype, FLASH_DTYPE_E4M3);
    const flash_params_t scaled = scales ? e4m3_params(p) : *p;
    if (task->way == CPU_WAY_PACK)
        tiled_pack(config, p, task, scratch);
    else
        tiled_attend(config, &scaled, task, scratch);
}

#endif
