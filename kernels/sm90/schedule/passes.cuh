/*
 * A block makes up to two passes over its tiles. With a fixed reference a tile may fail in the
 * first pass: its consumers record that, and the second pass schedules the same tiles again, of
 * which only those that failed are due. Without a fixed reference there is only the first pass.
 *
 * The second pass is rare. Loading and scheduling run the same code in both passes; consumers have
 * code of their own for the second one, of which there is little: see looks_for_cuts.
 */
#ifndef FLASH_KERNELS_SM90_SCHEDULE_PASSES_CUH
#define FLASH_KERNELS_SM90_SCHEDULE_PASSES_CUH

#include "sm90/block_state.cuh"
#include "sm90/ptx/barrier.cuh"
#include "sm90/ptx/predicated.cuh"
#include "sm90/ptx/tma.cuh"

/* Returns the bit of block_state_t::failed that stands for a tile, which is given by its index
 * among the tiles of the block. A block may have more tiles than bits: those that share the bit of
 * a tile that failed are computed again too. */
static __device__ __forceinline__ int32_t failure_bit(int32_t index) {
    return index % SM90_FAILURE_BITS;
}

/* Sets the bit of a tile that has failed. There is no branch: see ptx/predicated.cuh. */
template <flash_config_t C>
static __device__ __forceinline__ void record_failure_if(bool failed, int32_t index) {
    const int32_t bit = failure_bit(index);
    shared_or_if(failed, shared_address(&block_state<C>().failed[bit / 32]), 1u << bit % 32);
}

/* Says whether any tile of the block has failed. Whole warps call this, after the first pass. */
template <flash_config_t C> static __device__ __forceinline__ bool any_failed() {
    uint32_t failed = 0;
    for (int i = threadIdx.x % warp_threads; i < SM90_FAILURE_BITS / 32; i += warp_threads)
        failed |= block_state<C>().failed[i];
    return __any_sync(0xffffffffu, failed != 0);
}

/* second: in the second pass. */
template <flash_config_t C>
static __device__ __forceinline__ bool is_due(int32_t index, bool second) {
    const int32_t bit = failure_bit(index);
    return !second || block_state<C>().failed[bit / 32] >> bit % 32 & 1;
}

/* Waits until all roles have done the first pass; returns whether tiles failed in it. If so, what
 * it stored is in memory before the second pass stores there. */
template <flash_config_t C> static __device__ __forceinline__ bool await_second_pass() {
    __syncthreads();
    if (!any_failed<C>())
        return false;
    tma_store_wait();
    async_proxy_fence_global();
    __syncthreads();
    return true;
}

/* An assignment with one of these indices, instead of a tile's, ends a pass. */
enum { FIRST_PASS_ENDS = -1, SECOND_PASS_ENDS = -2 };

static __device__ __forceinline__ int32_t end_of_pass(bool second) {
    return second ? SECOND_PASS_ENDS : FIRST_PASS_ENDS;
}

/* Runs the passes of a role: pass(false), then pass(true) if tiles have failed. It returns what
 * ended it, so that a role which does the same in both passes has no register for which it is. */
template <flash_config_t C, typename PASS>
static __device__ __forceinline__ void run_passes(const PASS &pass) {
    bool second = false;
    int32_t end;
#pragma unroll 1
    do {
        end = pass(second);
        second = true;
    } while (C.fixed_reference && end == FIRST_PASS_ENDS && await_second_pass<C>());
}

/* Says whether V of blocks that a mask cuts is sanitised in the pass (load/sanitise_v.cuh). */
template <flash_config_t C> static __device__ __forceinline__ bool sanitises_in(bool second) {
    return has_mask<C> && (second || !C.fixed_reference);
}

#endif
