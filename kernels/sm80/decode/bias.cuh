/*
 * Decode kernels with bias add ALiBi and masks to the scores of a step, and hide keys in holes of a
 * page table.
 */
#ifndef FLASH_KERNELS_SM80_DECODE_BIAS_CUH
#define FLASH_KERNELS_SM80_DECODE_BIAS_CUH

#include "common/bias.cuh"
#include "common/block_bits.cuh"
#include "common/decode/rows.cuh"
#include "common/page_holes.cuh"
#include "sm80/decode/products.cuh"

/* The bias's row of each of the lane's rows; kernels without bias have none. */
template <flash_config_t C, bool HAS_BIAS = has_bias<C>> struct row_biases {};
template <flash_config_t C> struct row_biases<C, true> { flash_bias_row_t of[row_groups<C>][2]; };

template <flash_config_t C>
static __device__ __forceinline__ row_biases<C>
make_row_biases(const sm80_decode_params_t &params, const decode_block_t &block, int32_t head_kv) {
    row_biases<C> rows;
    if constexpr (has_bias<C>) {
        const flash_params_t &p = params.attention;
#pragma unroll
        for (int n = 0; n < row_groups<C>; ++n)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int32_t number = min(n * 8 + (int)threadIdx.x % 4 * 2 + j, block.rows - 1);
                const head_row_t row = find_row(params, block.row_begin + number);
                rows.of[n][j] = flash_bias_row(&p, &block.sequence, block.piece.batch_index,
                                               (int64_t)head_kv * p.group + row.head, row.query);
            }
    }
    return rows;
}

template <flash_config_t C, bool HAS_FACTORS>
static __device__ __forceinline__ void add_biases_of(score_tile<C> &s, const flash_bias_t &bias,
                                                     const row_biases<C> &rows, int32_t step_key,
                                                     float log2_unit) {
    const int32_t first = step_key + threadIdx.x % DECODE_WARP_THREADS / 4;
#pragma unroll
    for (int n = 0; n < row_groups<C>; ++n)
#pragma unroll
        for (int m = 0; m < key_tiles<C>; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                s.of[n][m][i] = add_bias(
                    s.of[n][m][i], log2_unit,
                    bias_of_key<HAS_FACTORS>(bias, rows.of[n][i % 2], first + m * 16 + i / 2 * 8));
}

/* Hides the keys that blocks hide, and adds ALiBi. */
template <flash_config_t C>
static __device__ __forceinline__ void add_blocks(score_tile<C> &s, const flash_bias_t &bias,
                                                  const row_biases<C> &rows, int32_t step_key,
                                                  float log2_unit) {
    static_assert(C.B_c <= 32, "a step's keys are among 32");
    const int32_t first = threadIdx.x % DECODE_WARP_THREADS / 4;
#pragma unroll
    for (int n = 0; n < row_groups<C>; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const flash_bias_row_t &row = rows.of[n][j];
            const uint32_t shown = shown_by_blocks(bias, row.at, step_key - row.first_key) >> first;
#pragma unroll
            for (int m = 0; m < key_tiles<C>; ++m)
#pragma unroll
                for (int i = j; i < 4; i += 2) {
                    const int key = m * 16 + i / 2 * 8;
                    const float added = flash_bias_alibi(&row, step_key + first + key);
                    s.of[n][m][i] =
                        add_bias(s.of[n][m][i], log2_unit, shown >> key & 1 ? added : -INFINITY);
                }
        }
}

/* Adds the bias of the keys from step_key on; scores are in the exponent of 2 then. */
template <flash_config_t C>
static __device__ __forceinline__ void add_biases(score_tile<C> &s, const flash_bias_t &bias,
                                                  const row_biases<C> &rows, int32_t step_key,
                                                  float log2_unit) {
    if constexpr (has_bias<C>) {
        if (!flash_has_bias(&bias))
            return;
        if (bias.mask != NULL && bias.kind == FLASH_MASK_BLOCKS)
            add_blocks<C>(s, bias, rows, step_key, log2_unit);
        else if (bias.head_scale == NULL)
            add_biases_of<C, false>(s, bias, rows, step_key, log2_unit);
        else
            add_biases_of<C, true>(s, bias, rows, step_key, log2_unit);
    }
}

/* ---- Holes ---- */

/* These are the holes of the sequence; kernels that do not hide them have none. */
template <flash_config_t C, bool HIDES = hides_holes<C>> struct key_holes {};
template <flash_config_t C> struct key_holes<C, true> { hole_ids_t ids; };

template <flash_config_t C>
static __device__ __forceinline__ key_holes<C> find_key_holes(const sm80_decode_params_t &params,
                                                              const decode_block_t &block) {
    if constexpr (hides_holes<C>)
        return {find_hole_ids(params.attention, block.sequence, block.piece.batch_index)};
    else
        return {};
}

/* Hides the keys from step_key on that lie in holes, if the call has any. */
template <flash_config_t C>
static __device__ __forceinline__ void hide_holes(score_tile<C> &s, const key_holes<C> &holes,
                                                  const sm80_decode_params_t &params,
                                                  int32_t step_key) {
    if constexpr (hides_holes<C>) {
        static_assert(C.B_c <= 32, "a lane looks up a key");
        if (!params.attention.bias.has_page_holes)
            return;
        const uint32_t hidden =
            find_holes(holes.ids, step_key,
                       [&](int32_t key) { return flash_divide(key, params.by_page_size); }) >>
            threadIdx.x % DECODE_WARP_THREADS / 4;
#pragma unroll
        for (int n = 0; n < row_groups<C>; ++n)
#pragma unroll
            for (int m = 0; m < key_tiles<C>; ++m)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if (hidden >> (m * 16 + i / 2 * 8) & 1)
                        s.of[n][m][i] = -INFINITY;
    }
}

#endif
