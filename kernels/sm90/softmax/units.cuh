/*
 * The unit of a row's scores is the call's, or where K is of e4m3 each row's own: K's scale and
 * the power of two in the row's Q (load/convert_q.cuh) belong to it.
 */
#ifndef FLASH_KERNELS_SM90_SOFTMAX_UNITS_CUH
#define FLASH_KERNELS_SM90_SOFTMAX_UNITS_CUH

#include "common/fp16_rows.cuh"
#include "common/score_unit.cuh"
#include "sm90/block_state.cuh"
#include "sm90/ptx/predicated.cuh"
#include "sm90/tile_rows.cuh"

#include <float.h>
#include <type_traits>

/* A thread's two rows have these units. */
typedef struct row_units {
    bool capped;
    float cap_log2; /* what a capped score is worth in the exponent: the same in all rows */
    float score[2]; /* a score as QK^T leaves it: in caps, or without a cap in the exponent */
} row_units_t;

/* These are units of rows whose Q is of e4m3: no sign and no 0 of a scale has gone into it. Units
 * of a warp that are not all positive and finite are odd: scores are multiplied by them before they
 * are looked at, and then have the unit 1. */
typedef struct scaled_units : row_units_t {
    bool odd; /* the same in all lanes */
} scaled_units_t;

template <flash_config_t C>
using score_units =
    std::conditional_t<multiplies_e4m3<C>, scaled_units_t,
                       std::conditional_t<has_scales<C>, row_units_t, score_unit_t>>;

/* This is the unit of the scores that the softmax sees: that of scores with a bias, or of scores as
 * they are where a call has none. */
template <flash_config_t C>
using softmax_units = std::conditional_t<has_bias<C>, score_unit_t, score_units<C>>;

/* ---- What a score is worth in the exponent of 2, and of e ---- */

static __device__ __forceinline__ float log2_unit(const score_unit_t &unit, int) {
    return unit.log2;
}

static __device__ __forceinline__ float log2_unit(const row_units_t &units, int half) {
    return units.capped ? units.cap_log2 : units.score[half];
}

static __device__ __forceinline__ float log2_unit(const scaled_units_t &units, int half) {
    return units.capped ? units.cap_log2 : units.odd ? 1.0f : units.score[half];
}

/* Returns the unit of the second row, or of the first. Kernels with softcap have no register to
 * keep both units of a call over the main loop. */
template <flash_config_t C>
static __device__ __forceinline__ float natural_unit(const softmax_units<C> &unit, bool second) {
    if constexpr (has_scales<C> || has_softcap<C>)
        return (second ? log2_unit(unit, 1) : log2_unit(unit, 0)) * ln_2;
    else
        return unit.natural;
}

/* Says whether only the second pass has code for such units. */
static __device__ __forceinline__ bool needs_second_pass(const score_unit_t &) {
    return false;
}

static __device__ __forceinline__ bool needs_second_pass(const row_units_t &) {
    return false;
}

static __device__ __forceinline__ bool needs_second_pass(const scaled_units_t &units) {
    return units.odd;
}

/* ---- What a score is worth in caps ---- */

static __device__ __forceinline__ bool is_capped(const score_unit_t &unit) {
    return unit.inverse_cap != 0.0f;
}

static __device__ __forceinline__ bool is_capped(const row_units_t &units) {
    return units.capped;
}

static __device__ __forceinline__ float inverse_cap(const score_unit_t &unit, int) {
    return unit.inverse_cap;
}

static __device__ __forceinline__ float inverse_cap(const row_units_t &units, int half) {
    return units.score[half];
}

static __device__ __forceinline__ float inverse_cap(const scaled_units_t &units, int half) {
    return units.odd ? 1.0f : units.score[half];
}

/* ---- Units of a tile ---- */

/* Returns the unit within what fp32 has, so that 0 and infinity keep their value when they are
 * multiplied by it. */
static __device__ __forceinline__ float bounded_unit(float unit) {
    return fminf(fmaxf(unit, FLT_MIN), FLT_MAX);
}

/* Returns a scale of a batch entry and K/V head, or 1. */
static __device__ __forceinline__ float load_scale(const flash_scale_t &scale, int32_t entry,
                                                   int32_t head_kv) {
    return global_load_if(scale.data != nullptr,
                          scale.data + entry * scale.stride_batch + head_kv * scale.stride_head,
                          1.0f);
}

/* Returns the scale of the thread's row `half` of Q by its token, or 1. */
template <flash_config_t C>
static __device__ __forceinline__ float load_token_scale(const flash_params_t &p,
                                                         const tile_of<C> &tile, int half) {
    const flash_strides_t &stride = p.q_scale.token_stride;
    const flash_sequence_t sequence = sequence_of<C>(p, tile);
    const int32_t query = tile.row_begin + row_query<C>(p, half);
    const bool exists = p.q_scale.of_token != nullptr && query < sequence.len_q;
    return global_load_if(exists,
                          p.q_scale.of_token + tile.batch_index * stride.batch +
                              (sequence.q_begin + query) * stride.seq +
                              head_of_warp<C>(p, tile) * stride.head,
                          1.0f);
}

/* Returns the units of a tile of rows that have scales, and are multiplied as they are. */
template <flash_config_t C>
static __device__ __forceinline__ scaled_units_t load_units(const flash_params_t &p,
                                                            const tile_of<C> &tile,
                                                            const score_unit_t &unit) {
    const int32_t head_kv = tile.head / p.group;
    const bool capped = has_softcap<C> && is_capped(unit);
    const float of_tile = (capped ? unit.inverse_cap : unit.log2) *
                          load_scale(p.k_scale, tile.batch_index, head_kv) *
                          load_scale(p.q_scale.of_head, tile.batch_index, head_kv);
    scaled_units_t units = {{capped, unit.log2, {}}, false};
    bool odd = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        units.score[half] = of_tile * load_token_scale<C>(p, tile, half);
        odd |= !(units.score[half] >= FLT_MIN && units.score[half] <= 0x1p125f);
    }
    units.odd = __any_sync(0xffffffffu, odd);
    return units;
}

/* Returns the units of a tile whose Q has arrived, and is not released yet unless it is in
 * registers. unit: that of the call. */
template <flash_config_t C>
static __device__ __forceinline__ score_units<C> units_of_tile(const score_unit_t &unit,
                                                               const ring_t &q_ring) {
    if constexpr (has_scales<C> && converts<C>) {
        const volatile conversion_state_t &state = conversion_state<C>();
        const int turn = q_turn<C>(q_ring) ^ q_in_registers<C>;
        const int part = tile_row(0) / q_part_rows<C>;
        const bool capped = has_softcap<C> && is_capped(unit);
        const float of_tile = (capped ? unit.inverse_cap : unit.log2) * state.k_scale[turn][part];
        row_units_t units = {capped, unit.log2, {}};
#pragma unroll
        for (int half = 0; half < 2; ++half)
            units.score[half] =
                bounded_unit(of_tile * power_of_two(-state.q_exponent[turn][tile_row(half)]));
        __syncwarp(); /* the lane that gives Q back speaks for all */
        return units;
    } else {
        return unit;
    }
}

#endif
