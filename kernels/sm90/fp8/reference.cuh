/*
 * Where P is of e4m3, a fixed reference is looked at after each block: a P that was cut off at the
 * largest code shows in its bits, and its value is still there in fp32. So the reference is raised
 * afterwards, if it has to be, and P, O and the sums follow it. The largest P is then 2^8, which
 * rounding does not change: where a few keys have most of the weight, its rounding would be most of
 * the error. To look takes a third of the instructions that a maximum of the scores does, and
 * nothing waits for it.
 *
 * What fp32 does not hold, a score of 2^120 times the reference, becomes infinite: the tile fails,
 * and is computed again.
 */
#ifndef FLASH_KERNELS_SM90_FP8_REFERENCE_CUH
#define FLASH_KERNELS_SM90_FP8_REFERENCE_CUH

#include "common/ptx/math.cuh"
#include "sm90/fp8/products.cuh"

/* Says whether any P of the warp has the largest code, or is NaN. */
template <flash_config_t C>
static __device__ __forceinline__ bool is_cut_off(const probability_tile<C> &p) {
    uint32_t beyond = 0;
#pragma unroll
    for (int i = 0; i < key_steps<C>; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
            beyond |= p.p[i][j] + 0x02020202u;
    return __any_sync(0xffffffffu, (beyond & 0x80808080u) != 0);
}

/* Rows in which many keys have weight get room above their largest score, so that it is seldom
 * that the reference has to be raised: there, what is lost below P's range does not count. */
template <flash_config_t C>
static __device__ __forceinline__ float room_of_row(const softmax_state_t &state, int half) {
    constexpr float many = 8.0f / reference_factor<C>, room = 2.0f;
    return quad_sum(state.sum[half]) >= many ? room : 0.0f;
}

/* Raises the reference of a row, in the exponent of 2. Returns the factor for O. */
template <flash_config_t C>
static __device__ __forceinline__ float
raise_reference(softmax_state_t &state, const softmax_units<C> &unit, int half, float rise) {
    const float factor = exp2_approx(-rise);
    state.max[half] += rise / log2_unit(unit, half);
    state.sum[half] *= factor;
    return factor;
}

/* Multiplies P of a block, which is not rounded yet, O and the weights. */
template <flash_config_t C>
static __device__ __forceinline__ void
rescale_block(score_tile<C> &p, output_tile<C> &o, second_level<C> &level, const rescale_t &past) {
#pragma unroll
    for (int i = 0; i < score_registers<C>; ++i)
        p.s[i] *= past.factor[i / 2 % 2];
    rescale_output<C>(o, past);
    rescale_weights<C>(level, past);
}

/* Leaves room before the first block whose reference is fixed. */
template <flash_config_t C>
static __device__ __forceinline__ void leave_room(score_tile<C> &p, output_tile<C> &o,
                                                  second_level<C> &level, softmax_state_t &state,
                                                  const softmax_units<C> &unit) {
    rescale_t past;
#pragma unroll
    for (int half = 0; half < 2; ++half)
        past.factor[half] = raise_reference<C>(state, unit, half, room_of_row<C>(state, half));
    rescale_block<C>(p, o, level, past);
}

/* Raises the reference of a row that a P of the block is cut off by. Returns the factor for O. */
template <flash_config_t C>
static __device__ __forceinline__ float follow_block(const score_tile<C> &p, softmax_state_t &state,
                                                     const softmax_units<C> &unit, int half) {
    constexpr float most = 432.0f; /* is not cut off yet */
    const float max = row_max<C>(p, half);
    const float rise = max >= most ? log2_approx(max) + reference_margin<C> : 0.0f;
    const float factor = raise_reference<C>(state, unit, half, rise);
    const float room = room_of_row<C>(state, half); /* which all lanes ask for */
    return factor * raise_reference<C>(state, unit, half, rise > 0.0f ? room : 0.0f);
}

/* Rounds P of a block, and raises the references of the warp's rows if it is cut off. PV of the
 * blocks before is done. */
template <flash_config_t C>
static __device__ __forceinline__ void
round_and_look(probability_tile<C> &p, score_tile<C> &s, output_tile<C> &o, second_level<C> &level,
               softmax_state_t &state, const softmax_units<C> &unit) {
    round_to_e4m3<C>(p, s);
    if (!is_cut_off<C>(p))
        return;
    rescale_t past;
#pragma unroll
    for (int half = 0; half < 2; ++half)
        past.factor[half] = follow_block<C>(s, state, unit, half);
    rescale_block<C>(s, o, level, past);
    round_to_e4m3<C>(p, s);
}

#endif
