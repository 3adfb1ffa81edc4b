/*
 * multicast: two blocks of a cluster take neighbouring tiles of the same K/V head, and each loads
 * half of every block of K and V for both.
 *
 * Both walk the same blocks of keys in the same order, so their rings of K and V stand for the same
 * blocks in the same places. For the n-th use of a place:
 *
 *   empty  in either block counts the consumer warps of both blocks, each of which arrives at both.
 *          Complete: the place is free in both, so either producer may write into both.
 *   full   counts one arrival and the bytes of a whole block: the producer of its own block arrives
 *          and announces all bytes; each producer brings half of the rows to both. A half may come
 *          before the announcement: the phase stays open until the arrival. It cannot come before
 *          the phase: the other producer has waited for `empty`, for which this block's consumers
 *          must have left the place, and so have seen the phase before complete.
 *
 * Where O leaves through the blocks of V, the producers wait for the carriers of both blocks
 * (o_left counts two): either would write over the O of both. Q, and other places of O, are a
 * block's own affair.
 *
 * So both blocks must be given the same number of tiles, with the same blocks of keys. Tiles of a
 * K/V head are numbered through its query heads, with one tile without rows behind an odd number of
 * them, and grids have whole clusters: neighbouring numbers go to neighbouring blocks in the same
 * round. A tile without rows is computed on queries of zeros and nothing of it is stored. In the
 * second pass both redo a tile that failed in either.
 *
 * No block ends while the other may still write into it or arrive at its barriers.
 */
#ifndef FLASH_KERNELS_SM90_CLUSTER_CUH
#define FLASH_KERNELS_SM90_CLUSTER_CUH

#include "common/ptx/shared_memory.cuh"
#include "sm90/derive.cuh"
#include "sm90/ptx/barrier.cuh"
#include "sm90/ptx/cluster.cuh"

/* Rank of this block in its cluster, and of the other one. */
static __device__ __forceinline__ uint32_t own_rank() {
    return blockIdx.x % SM90_CLUSTER_BLOCKS;
}

static __device__ __forceinline__ uint32_t other_rank() {
    return own_rank() ^ 1;
}

/* Everyone who uses the barriers of this block. */
template <flash_config_t C> static __device__ __forceinline__ void sync_blocks() {
    if constexpr (in_cluster<C>)
        cluster_sync();
    else
        __syncthreads();
}

/* For a warp that has left a place of K, V or O: tells whoever loads into it. */
template <flash_config_t C>
static __device__ __forceinline__ void release_to_producers(const uint64_t &barrier) {
    if constexpr (in_cluster<C>)
        mbarrier_arrive_once_at_both(shared_address(&barrier), other_rank());
    else
        mbarrier_arrive_once_if(shared_address(&barrier), true);
}

#endif
