/*
 * Kernels with bias leave out blocks of keys that the mask hides from all rows of the tile, and add
 * no mask to blocks where it changes nothing.
 *
 * The walk goes from block to block that is shown. It finds the next one before it computes a
 * block, since K of the next one is loaded meanwhile. Each time that it enters another group of
 * blocks, the warps share them, look at the mask's part of each (common/mask_effect.cuh), and leave
 * what they see in shared memory. A call without a mask, and a mask elsewhere, cost no reads.
 */
#ifndef FLASH_KERNELS_SM80_FORWARD_SHOWN_BLOCKS_CUH
#define FLASH_KERNELS_SM80_FORWARD_SHOWN_BLOCKS_CUH

#include "common/mask_effect.cuh"
#include "sm80/forward/tile.cuh"

/* A group consists of blocks whose numbers are the same but for the lowest bits. */
constexpr int group_blocks = 8;

/* Returns where the effect of a block is kept. Two groups that follow each other have places of
 * their own, so that a warp may look at one while others still read that of the group before. */
static __device__ __forceinline__ volatile uint8_t &block_effect(int32_t block) {
    __shared__ uint8_t effects[2 * group_blocks];
    return *static_cast<volatile uint8_t *>(&effects[block % (2 * group_blocks)]);
}

/* Looks at the blocks of a group from the last one that matters down to `final`. Inlined, it takes
 * registers that the larger kernels do not have. */
template <flash_config_t C>
static __device__ __noinline__ void look_at_group(const flash_params_t &params, int32_t last,
                                                  int32_t final) {
    const query_tile_t tile = find_tile<C>(params);
    const int32_t first = max(last / group_blocks * group_blocks, final);
    const flash_bias_row_t row =
        flash_bias_row(&params, &tile.sequence, tile.batch_index, tile.head, tile.row_begin);
#pragma unroll 1
    for (int32_t block = last - (int32_t)threadIdx.x / SM80_WARP_THREADS; block >= first;
         block -= C.n_warps) {
        const int32_t key = block * C.B_c;
        const flash_range_t keys = {key, key + min(C.B_c, tile.sequence.len_k - key)};
        const int effect = mask_effect<C.B_c>(params.bias, row, tile.row_begin, tile.rows, keys);
        if (threadIdx.x % SM80_WARP_THREADS == 0)
            block_effect(block) = (uint8_t)effect;
    }
    __syncthreads();
}

/* Returns the last block that is shown from `block` down to `final`; one below final if there is
 * none. FIRST: no group was looked at yet. */
template <flash_config_t C, bool FIRST>
static __device__ __forceinline__ shown_block_t find_shown_block(const flash_params_t &params,
                                                                 int32_t block, int32_t final) {
    if (params.bias.mask == NULL)
        return shown_block_of(block, false);
    bool is_known = !FIRST;
    int effect = 0;
#pragma unroll 1
    for (; block >= final; --block) {
        if (!is_known || block % group_blocks == group_blocks - 1)
            look_at_group<C>(params, block, final);
        is_known = true;
        effect = block_effect(block);
        if (effect & MASK_SHOWS)
            break;
    }
    return shown_block_of(block, effect & MASK_CHANGES);
}

#endif
