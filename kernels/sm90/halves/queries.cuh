/*
 * Beside a cache of e4m3, which is multiplied as fp16, Q of bf16 becomes fp16 too. Each row is
 * multiplied by a power of two (common/fp16_rows.cuh), by which its scores are divided when they
 * are multiplied by K's scale.
 */
#ifndef FLASH_KERNELS_SM90_HALVES_QUERIES_CUH
#define FLASH_KERNELS_SM90_HALVES_QUERIES_CUH

#include "common/scale.h"
#include "sm90/decode/convert_queries.cuh"
#include "sm90/halves/state.cuh"
#include "sm90/softmax/units.cuh"

/* Copies Q as copy_queries() does, converted if K is, and leaves the factors of the scores. FIRST:
 * of the block's first tile. */
template <flash_config_t C, bool FIRST>
static __device__ __forceinline__ void copy_half_queries(const decode_params_t &params,
                                                         const decode_block_t &block) {
    const flash_params_t &p = params.attention;
    query_chunks<C> chunks = fetch_queries<C, FIRST>(params, block);
    if constexpr (has_scales<C>) {
        const float k_scale =
            flash_scale_at(&p.k_scale, block.piece.batch_index, block.first_head_kv);
        const int exponent = p.q_dtype == FLASH_DTYPE_BF16 ? convert_queries<C>(chunks) : 0;
        if (consumer_thread() % row_threads<C> == 0)
            exchange<C>().score_factors[copied_row<C>()] = power_of_two(-exponent) * k_scale;
    }
    store_queries<C>(chunks);
}

/* Returns the unit of scores that have been multiplied by their factors: that of the call. */
template <flash_config_t C>
static __device__ __forceinline__ score_units<C> units_of_scores(const score_unit_t &unit) {
    if constexpr (has_scales<C>) {
        const bool capped = has_softcap<C> && is_capped(unit);
        const float of_score = capped ? unit.inverse_cap : unit.log2;
        return row_units_t{capped, unit.log2, {of_score, of_score}};
    } else {
        return unit;
    }
}

#endif
