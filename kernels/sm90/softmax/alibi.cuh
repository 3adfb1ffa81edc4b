/*
 * ALiBi adds a slope times the distance between a key and the place of the query.
 */
#ifndef FLASH_KERNELS_SM90_SOFTMAX_ALIBI_CUH
#define FLASH_KERNELS_SM90_SOFTMAX_ALIBI_CUH

#include "sm90/softmax/bias_keys.cuh"

/* Adds ALiBi. Where all keys of the block are at the same side of every row's place, it is a linear
 * function of the key. Distances are exact below 2^24 keys. */
template <flash_config_t C, typename R>
static __device__ __forceinline__ void add_alibi(score_tile<C> &s, const bias_keys_t &keys,
                                                 const score_scale_t &scale, const R &row_of) {
    const bool is_left = keys.first_key + C.B_c - 1 <= keys.first_diagonal;
    const bool is_right = keys.first_key >= keys.last_diagonal;
    if (is_left || is_right) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const flash_bias_row_t row = row_of(half);
            const float slope = is_left ? row.slope : -row.slope;
            const float first = slope * (float)(keys.first_key + tile_column() - row.diagonal);
            for_each_score<C>(s, half, [&](float &score, int column) {
                score = fmaf(score, scale.of_row[half], fmaf(slope, (float)column, first));
            });
        }
    } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const flash_bias_row_t row = row_of(half);
            const float first = (float)(keys.first_key + tile_column() - row.diagonal);
            for_each_score<C>(s, half, [&](float &score, int column) {
                const float distance = fabsf(first + (float)column);
                score = fmaf(score, scale.of_row[half], -row.slope * distance);
            });
        }
    }
}

#endif
