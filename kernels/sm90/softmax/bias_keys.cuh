/*
 * A bias is added to the scores of a block whose keys lie somewhere in the mask, and at a distance
 * from the places of the queries.
 */
#ifndef FLASH_KERNELS_SM90_SOFTMAX_BIAS_KEYS_CUH
#define FLASH_KERNELS_SM90_SOFTMAX_BIAS_KEYS_CUH

#include "common/bias.h"
#include "sm90/fragments.cuh"

/* These uniform values say how the keys of a block lie to the bias. */
typedef struct bias_keys {
    int32_t first_key;
    int32_t first_diagonal; /* the key at the place of the tile's first row */
    int32_t last_diagonal;  /* of its last row, or beyond */
    int64_t column;         /* of the mask, at the first key; negative before its first one */
} bias_keys_t;

static __device__ __forceinline__ bias_keys_t find_bias_keys(const flash_bias_t &bias,
                                                             int32_t len_k, int32_t first_key,
                                                             int32_t first_diagonal,
                                                             int32_t last_diagonal) {
    const int64_t first_of_mask = (int64_t)bias.first_key + (bias.is_last_keys ? len_k : 0);
    return bias_keys_t{first_key, first_diagonal, last_diagonal, first_key - first_of_mask};
}

/* Calls f(score, column) for each of the thread's scores of a row. column: how far it is from the
 * thread's first one. */
template <flash_config_t C, typename F>
static __device__ __forceinline__ void for_each_score(score_tile<C> &s, int half, const F &f) {
#pragma unroll
    for (int i = 0; i < C.B_c / 4; ++i)
        f(s.s[i / 2 * 4 + 2 * half + i % 2], i / 2 * 8 + i % 2);
}

/* Scores of the thread's two rows are multiplied by this to be in the exponent of e. */
typedef struct score_scale {
    float of_row[2];
} score_scale_t;

template <flash_config_t C>
static __device__ __forceinline__ void scale_scores(score_tile<C> &s, const score_scale_t &scale) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
        for_each_score<C>(s, half, [&](float &score, int) { score *= scale.of_row[half]; });
}

/* Says whether the mask has columns for keys of the block. */
template <flash_config_t C>
static __device__ __forceinline__ bool mask_covers(const flash_bias_t &bias,
                                                   const bias_keys_t &keys) {
    return bias.mask != nullptr && keys.column > -C.B_c && keys.column < bias.n_keys;
}

#endif
