/*
 * The named barriers of a decode block come after those of turns.
 */
#ifndef FLASH_KERNELS_SM90_DECODE_BARRIERS_CUH
#define FLASH_KERNELS_SM90_DECODE_BARRIERS_CUH

#include "sm90/block_state.cuh"

enum {
    CONSUMERS_BARRIER = (int)TURN_BARRIER + SM90_MAX_CONSUMERS, /* of all consumers */
    QUERIES_BARRIER,                                            /* of them and the loading warps */
    CONVERTED_BARRIER,                                          /* of them and the converter */
    CONSUMER_BARRIER                                            /* and on, one per consumer */
};

template <flash_config_t C> static __device__ __forceinline__ void meet_consumers() {
    named_barrier_sync(CONSUMERS_BARRIER, consumer_threads<C>);
}

/* Warps of the producer transpose V where products of decode kernels are of e4m3
 * (decode/transpose.cuh). */
enum { TRANSPOSE_WARPS = 2 };
template <flash_config_t C> constexpr bool transposes = multiplies_e4m3<C>;

/* So many warps make of a block that has landed what is multiplied. */
template <flash_config_t C>
constexpr int changing_warps = converts<C>     ? (int)warpgroup_warps
                               : transposes<C> ? (int)TRANSPOSE_WARPS
                                               : 0;

/* Threads of these warps and the consumers meet where these read what it has stored otherwise
 * than by wgmma. The barrier at which each of its warps arrives would do, but racecheck does not
 * see that it stands for all lanes. */
template <flash_config_t C> static __device__ __forceinline__ void meet_converter() {
    if constexpr (changing_warps < C >> 0)
        named_barrier_sync(CONVERTED_BARRIER,
                           consumer_threads<C> + changing_warps<C> * warp_threads);
}

/* One warp loads K, and another V, unless V lies in K. */
template <flash_config_t C> constexpr int loading_warps = C.arch == FLASH_ARCH_SM90_MLA ? 1 : 2;

/* The warps that load K and V wait until the consumers have asked memory for Q. A ring is so much
 * to load that Q would come late, and nothing can begin without it. */
template <flash_config_t C>
constexpr int query_barrier_threads = consumer_threads<C> + loading_warps<C> *warp_threads;

template <flash_config_t C> static __device__ __forceinline__ void announce_query_loads() {
    named_barrier_arrive(QUERIES_BARRIER, query_barrier_threads<C>);
}

template <flash_config_t C> static __device__ __forceinline__ void await_query_loads() {
    named_barrier_sync(QUERIES_BARRIER, query_barrier_threads<C>);
}

#endif
