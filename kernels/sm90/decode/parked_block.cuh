/*
 * A consumer whose registers are scarce forgets its block and its walk over the main loop, and
 * reads them again from shared memory afterwards.
 */
#ifndef FLASH_KERNELS_SM90_DECODE_PARKED_BLOCK_CUH
#define FLASH_KERNELS_SM90_DECODE_PARKED_BLOCK_CUH

#include "common/decode/block.cuh"
#include "sm90/decode/walk.cuh"

#include <string.h>

template <flash_config_t C> constexpr bool parks_block = multiplies_e4m3<C>;

typedef struct parked {
    decode_block_t block;
    key_walk_t walk;
} parked_t;

/* Returns where a consumer has them: there are no assignments here. */
template <flash_config_t C> static __device__ __forceinline__ void *parking(int consumer) {
    static_assert(sizeof(parked_t[SM90_MAX_CONSUMERS - 1]) <= sizeof(block_state_t::assignments) &&
                      consumers<C> < SM90_MAX_CONSUMERS,
                  "there is room");
    static_assert(!hides_holes<C>, "which are kept there too");
    return (parked_t *)block_state<C>().assignments + consumer;
}

/* Parks the block and the walk of a consumer, before its threads meet. */
template <flash_config_t C>
static __device__ __forceinline__ void park(int consumer, const decode_block_t &block,
                                            const key_walk_t &walk) {
    if constexpr (parks_block<C>)
        if (threadIdx.x % SM90_WARPGROUP_THREADS == 0) {
            const parked_t parked = {block, walk};
            memcpy(parking<C>(consumer), &parked, sizeof parked);
        }
}

/* Returns them after the main loop. */
template <flash_config_t C>
static __device__ __forceinline__ parked_t unpark(int consumer, const decode_block_t &block,
                                                  const key_walk_t &walk) {
    if constexpr (parks_block<C>) {
        constexpr int words = sizeof(parked_t) / sizeof(uint32_t);
        const volatile uint32_t *from = (const uint32_t *)parking<C>(consumer);
        uint32_t copy[words];
#pragma unroll
        for (int i = 0; i < words; ++i)
            copy[i] = from[i];
        parked_t parked;
        memcpy(&parked, copy, sizeof parked);
        return parked;
    } else {
        return {block, walk};
    }
}

#endif
