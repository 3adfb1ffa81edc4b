/*
 * Rows beside K of e4m3 have units of their own (softmax/units.cuh), by the scales of K and of Q.
 * Where K is multiplied as fp16, Q of bf16 becomes fp16 too, each row times a power of two
 * (common/fp16_rows.cuh); the sign of K's scale goes into Q.
 *
 * At the end maxima are made numbers in the exponent of e, which pieces of a row share, and O and
 * the sums what they are of P of other types.
 */
#ifndef FLASH_KERNELS_SM90_DECODE_SCALED_ROWS_CUH
#define FLASH_KERNELS_SM90_DECODE_SCALED_ROWS_CUH

#include "common/natural_bias.cuh"
#include "common/scale.h"
#include "sm90/decode/consumer.cuh"
#include "sm90/decode/convert_queries.cuh"
#include "sm90/decode/queries.cuh"
#include "sm90/load/convert_q_chunk.cuh"

static __device__ __forceinline__ float load_k_scale(const decode_params_t &params,
                                                     const decode_block_t &block) {
    return flash_scale_at(&params.attention.k_scale, block.piece.batch_index, block.first_head_kv);
}

/* Multiplies the thread's part of a row by the sign of K's scale, which is 1 for most. */
template <flash_config_t C>
static __device__ __forceinline__ void sign_queries(query_chunks<C> &chunks, float sign) {
    if (sign == 1.0f)
        return;
#pragma unroll
    for (int i = 0; i < thread_query_chunks<C>; ++i)
        chunks.of[i] = convert_chunk<false>(chunks.of[i], sign);
}

/* Copies Q as copy_queries() does, converted if K is, and leaves the exponents of rows. */
template <flash_config_t C>
static __device__ __forceinline__ void copy_scaled_queries(const decode_params_t &params,
                                                           const decode_block_t &block) {
    query_chunks<C> chunks = fetch_queries<C>(params, block);
    if constexpr (converts<C>) {
        const float sign = split_scale(load_k_scale(params, block)).of_q;
        const bool is_bf16 = params.attention.q_dtype == FLASH_DTYPE_BF16;
        const int exponent = is_bf16 ? convert_queries<C>(chunks) : 0;
        sign_queries<C>(chunks, sign);
        if (consumer_thread() % row_threads<C> == 0)
            conversion_state<C>().q_exponent[0][copied_row<C>()] = (int8_t)exponent;
    }
    store_queries<C>(chunks);
}

/* Returns the scale of one of the thread's two rows of Q of e4m3. */
static __device__ __forceinline__ float load_q_scale(const decode_params_t &params,
                                                     const decode_block_t &block, int half) {
    const flash_params_t &p = params.attention;
    const head_row_t row = find_row(params, block.row_begin + min(tile_row(half), block.rows - 1));
    return flash_q_scale_at(&p, block.piece.batch_index, block.sequence.q_begin + row.query,
                            (int64_t)block.first_head_kv * p.group + row.head);
}

/* Returns what a score of one of the thread's rows, as QK^T leaves it, is in scores of the call. */
template <flash_config_t C>
static __device__ __forceinline__ float
score_factor(const decode_params_t &params, const decode_block_t &block, float k_scale, int half) {
    if constexpr (converts<C>) {
        const volatile int8_t *exponents = conversion_state<C>().q_exponent[0];
        return split_scale(k_scale).magnitude * power_of_two(-exponents[tile_row(half)]);
    } else {
        return k_scale * load_q_scale(params, block, half);
    }
}

/* Returns the units of the thread's rows. unit: that of the call. */
template <flash_config_t C>
static __device__ __forceinline__ score_units<C> units_of_rows(const decode_params_t &params,
                                                               const decode_block_t &block,
                                                               const score_unit_t &unit) {
    if constexpr (has_scales<C>) {
        const bool capped = has_softcap<C> && is_capped(unit);
        const float of_call = capped ? unit.inverse_cap : unit.log2;
        const float k_scale = load_k_scale(params, block);
        row_units_t units = {capped, unit.log2, {}};
        bool odd = false;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float of_row = of_call * score_factor<C>(params, block, k_scale, half);
            units.score[half] = multiplies_e4m3<C> ? of_row : bounded_unit(of_row);
            odd |= !(of_row >= FLT_MIN && of_row <= FLT_MAX);
        }
        if constexpr (multiplies_e4m3<C>)
            return {units, __any_sync(0xffffffffu, odd) != 0};
        else
            return units;
    } else {
        return unit;
    }
}

/* Returns the unit of the maxima that finish_scales() leaves. */
template <flash_config_t C>
static __device__ __forceinline__ score_unit_t unit_of_maxima(const tile_bias<C> &bias,
                                                              const score_unit_t &unit) {
    if constexpr (has_scales<C>)
        return natural_biased_unit();
    else
        return softmax_unit<C>(bias, unit);
}

/* Divides O by the weights of rounded P, and multiplies it by the sums of the unrounded, which O of
 * all pieces is divided by. */
template <flash_config_t C>
static __device__ __forceinline__ void finish_weights(row_state<C> &rows) {
    float factor[2];
    finish_sums(rows.softmax);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        rows.softmax.sum[half] *= reference_factor<C>;
        factor[half] = rows.softmax.sum[half] == 0.0f
                           ? 0.0f
                           : rows.softmax.sum[half] / rows.second.weight[half];
    }
    rescale_output<C>(rows.o, rescale_t{{factor[0], factor[1]}});
}

/* Finishes the sums, and makes the maxima numbers in the exponent of e where rows have units. */
template <flash_config_t C>
static __device__ __forceinline__ void finish_scales(row_state<C> &rows,
                                                     const score_units<C> &units) {
    if constexpr (multiplies_e4m3<C>)
        finish_weights<C>(rows);
    else
        finish_sums(rows.softmax);
    if constexpr (has_scales<C>)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            rows.softmax.max[half] *= log2_unit(units, half) * ln_2;
}

#endif
