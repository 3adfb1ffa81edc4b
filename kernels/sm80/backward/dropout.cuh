/*
 * Kernels with dropout find which weights of a part stay before they make P and dS. If rows are
 * keys, a thread holds other elements of a patch than those that one call of Philox decides about,
 * and the warp transposes the bits.
 */
#ifndef FLASH_KERNELS_SM80_BACKWARD_DROPOUT_CUH
#define FLASH_KERNELS_SM80_BACKWARD_DROPOUT_CUH

#include "common/dropout.cuh"
#include "sm80/backward/products.cuh"
#include "sm80/backward/tile.cuh"
#include "sm80/ptx/movmatrix.cuh"

/* Words of the patches of a part: four of each, in which halves of 16 bits are those of a weight.
 */
template <flash_config_t C> struct kept_part { philox_t words[m_tiles<C>][part_tiles<C> / 2]; };

/* Says whether element i of tile n stays. */
template <flash_config_t C>
static __device__ __forceinline__ bool stays(const kept_part<C> &kept, const weight_bound_t &bound,
                                             int m, int n, int i) {
    /* words are by the half of queries, and twice that of keys */
    const int word = rows_are_keys<C> ? n % 2 + 2 * (i / 2) : i / 2 + 2 * (n % 2);
    return weight_stays(kept.words[m][n / 2].word[word], i % 2, bound);
}

/* A block keeps the decisions about the tile's first query head in shared memory, because the main
 * loop has no registers left. The first thread writes them, and the first block's barrier shows
 * them. */
static __device__ __forceinline__ flash_dropout_head_t &dropout_of_tile() {
    __shared__ flash_dropout_head_t head;
    return head;
}

template <flash_config_t C>
static __device__ __forceinline__ void initialize_dropout(const flash_params_t &p,
                                                          const gradient_tile_t &tile) {
    if constexpr (has_dropout<C>)
        if (threadIdx.x == 0)
            dropout_of_tile() =
                flash_dropout_head(&p.dropout, p.n_heads, tile.batch_index,
                                   rows_are_keys<C> ? tile.head * p.group : tile.head);
}

/* member: of the group's query heads, if rows are keys. The steps of Philox's key are computed once
 * for a warp and not by each lane. */
template <flash_config_t C>
static __device__ __forceinline__ kept_part<C> find_kept(const gradient_tile_t &tile,
                                                         int32_t member, int32_t first_column) {
    flash_dropout_head_t head = dropout_of_tile();
    head.key_0 = uniform_of_warp(head.key_0);
    head.key_1 = uniform_of_warp(head.key_1);
    head.head += (uint32_t)member;
    const uint32_t row = (uint32_t)(tile.row_begin + first_row_of_warp<C>()) / DROPOUT_PATCH;
    const uint32_t column = (uint32_t)first_column / DROPOUT_PATCH;
    kept_part<C> kept;
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int n = 0; n < part_tiles<C> / 2; ++n) {
            const uint32_t patch_q = rows_are_keys<C> ? column + n : row + m;
            const uint32_t patch_k = rows_are_keys<C> ? row + m : column + n;
            philox_t &words = kept.words[m][n];
            words = flash_dropout_words(&head, patch_q, patch_k, threadIdx.x % 32);
            if constexpr (rows_are_keys<C>)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    words.word[i] = movmatrix_trans(words.word[i]);
        }
    return kept;
}

#endif
