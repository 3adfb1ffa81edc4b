/*
 * Kernels with dropout find which weights of a part stay, before they make P and dS: a bit for each
 * of the thread's elements. If rows are keys, a thread holds other elements of a patch than those
 * that one call of Philox decides about, and the warp transposes the bits.
 */
#ifndef FLASH_KERNELS_SM80_BACKWARD_DROPOUT_CUH
#define FLASH_KERNELS_SM80_BACKWARD_DROPOUT_CUH

#include "common/dropout.h"
#include "sm80/backward/products.cuh"
#include "sm80/backward/tile.cuh"
#include "sm80/ptx/movmatrix.cuh"

/* Bit 4 n + i is element i of tile n. */
template <flash_config_t C> struct kept_part {
    static_assert(part_tiles<C> <= 8, "a row of tiles has 32 bits");
    uint32_t bits[m_tiles<C>];
};

/* Returns the bits of a patch of two tiles, of which the second has the upper ones. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t kept_of_patch(const philox_t &words,
                                                         uint32_t threshold) {
    uint32_t kept = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int column = i % 2, half = i / 2;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            /* words are by the half of queries, and twice that of keys */
            const uint32_t word = words.word[rows_are_keys<C> ? n + 2 * half : half + 2 * n];
            if ((column ? word >> 16 : word & 0xffff) >= threshold)
                kept |= 1u << (4 * n + i);
        }
    }
    return kept;
}

template <flash_config_t C>
static __device__ __forceinline__ kept_part<C> find_kept(const flash_params_t &p,
                                                         const gradient_tile_t &tile,
                                                         int32_t member, int32_t first_column) {
    const int32_t of_head = rows_are_keys<C> ? tile.head * p.group + member : tile.head;
    const flash_dropout_head_t head =
        flash_dropout_head(&p.dropout, p.n_heads, tile.batch_index, of_head);
    const uint32_t row = (uint32_t)(tile.row_begin + first_row_of_warp<C>()) / DROPOUT_PATCH;
    const uint32_t column = (uint32_t)first_column / DROPOUT_PATCH;
    kept_part<C> kept = {};
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int n = 0; n < part_tiles<C>; n += 2) {
            const uint32_t patch_q = rows_are_keys<C> ? column + n / 2 : row + m;
            const uint32_t patch_k = rows_are_keys<C> ? row + m : column + n / 2;
            philox_t words = flash_dropout_words(&head, patch_q, patch_k, threadIdx.x % 32);
            if constexpr (rows_are_keys<C>)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    words.word[i] = movmatrix_trans(words.word[i]);
            kept.bits[m] |= kept_of_patch<C>(words, p.dropout.threshold) << 4 * n;
        }
    return kept;
}

/* Multiplies elements that stay by a factor, and makes the others 0. */
template <flash_config_t C>
static __device__ __forceinline__ void keep(score_part<C> &x, const kept_part<C> &kept,
                                            float factor) {
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int n = 0; n < part_tiles<C>; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                x.s[m][n][i] = kept.bits[m] >> (4 * n + i) & 1 ? x.s[m][n][i] * factor : 0.0f;
}

#endif
