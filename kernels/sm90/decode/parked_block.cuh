/*
 * A consumer whose registers are scarce forgets its block over the main loop, and reads it again
 * from shared memory afterwards.
 */
#ifndef FLASH_KERNELS_SM90_DECODE_PARKED_BLOCK_CUH
#define FLASH_KERNELS_SM90_DECODE_PARKED_BLOCK_CUH

#include "common/decode/block.cuh"
#include "sm90/decode/derive.cuh"

#include <string.h>

template <flash_config_t C> constexpr bool parks_block = multiplies_e4m3<C>;

constexpr int block_words = sizeof(decode_block_t) / sizeof(uint32_t);

/* Returns where the block is parked: there are no assignments here. */
template <flash_config_t C> static __device__ __forceinline__ uint32_t *parking() {
    static_assert(sizeof(decode_block_t) <= sizeof(block_state_t::assignments), "there is room");
    static_assert(!hides_holes<C>, "which are kept there too");
    return &block_state<C>().assignments[0][0];
}

/* Parks the block, in one thread, before all threads meet. */
template <flash_config_t C>
static __device__ __forceinline__ void park_block(const decode_block_t &block) {
    if constexpr (parks_block<C>)
        memcpy(parking<C>(), &block, sizeof block);
}

/* Returns the block after the main loop. */
template <flash_config_t C>
static __device__ __forceinline__ decode_block_t block_again(const decode_block_t &block) {
    if constexpr (parks_block<C>) {
        const volatile uint32_t *from = parking<C>();
        uint32_t words[block_words];
#pragma unroll
        for (int i = 0; i < block_words; ++i)
            words[i] = from[i];
        decode_block_t again;
        memcpy(&again, words, sizeof again);
        return again;
    } else {
        return block;
    }
}

#endif
