/*
 * A block under a mask keeps its state in 16 bytes of static shared memory, because the main loop
 * has no registers left. The first thread writes it before the main loop, whose barriers order all
 * reads.
 */
#ifndef FLASH_KERNELS_SM80_FORWARD_BLOCK_STATE_CUH
#define FLASH_KERNELS_SM80_FORWARD_BLOCK_STATE_CUH

#include "sm80/forward/tile.cuh"

typedef struct block_state {
    int32_t block_begin; /* as in query_tile_t */
    int32_t whole_begin;
    int32_t whole_end;
    int32_t v_sanitised; /* V had NaN or infinities: see sanitise_v.cuh */
} block_state_t;

/* The state is volatile, so that each read is a load and no register holds a value. */
static __device__ __forceinline__ volatile block_state_t &block_state() {
    __shared__ block_state_t state;
    return state;
}

template <flash_config_t C>
static __device__ __forceinline__ void initialize_block_state(const query_tile_t &tile) {
    if (!has_mask<C> || threadIdx.x != 0)
        return;
    volatile block_state_t &state = block_state();
    state.block_begin = tile.block_begin;
    state.whole_begin = tile.whole_begin;
    state.whole_end = tile.whole_end;
    state.v_sanitised = 0;
}

/* Says that the block visited first, which counts as cut, is not the tile's last one. */
template <flash_config_t C>
static __device__ __forceinline__ void begin_walk_at(const query_tile_t &tile, int32_t block) {
    if (has_mask<C> && threadIdx.x == 0)
        block_state().whole_end = min(tile.whole_end, block);
}

/* Returns the end of the blocks that each row sees whole, without the one visited first. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t end_of_whole_blocks(const query_tile_t &tile) {
    if constexpr (has_bias<C>)
        return block_state().whole_end;
    else
        return tile.whole_end;
}

/* Returns the last block that is visited, which has the lowest number. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t final_block(const query_tile_t &tile) {
    if constexpr (has_mask<C>)
        return block_state().block_begin;
    else
        return tile.block_begin;
}

/* Returns the same where the tile is not at hand. Without a mask the tile sees all keys. */
template <flash_config_t C> static __device__ __forceinline__ int32_t final_block() {
    if constexpr (has_mask<C>)
        return block_state().block_begin;
    else
        return 0;
}

/* Says whether some row may not see some key of the block. */
template <flash_config_t C> static __device__ __forceinline__ bool is_cut(int32_t block) {
    if constexpr (has_mask<C>)
        return block < block_state().whole_begin || block >= block_state().whole_end;
    else
        return false;
}

#endif
