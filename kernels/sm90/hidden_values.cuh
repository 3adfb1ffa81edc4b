/*
 * Infinities and NaNs in V where a mask hides the key from some rows only. P is 0 there, but
 * 0 * NaN is NaN, and wgmma cannot tell. So one warp, the guard, looks over the few blocks of V
 * that a mask cuts before the consumers may use them, and zeroes such elements; the rare tile that
 * had some adds them, at its end, to the rows that do see them.
 *
 * With a fixed reference V goes to the consumers as it comes, and the second pass alone is guarded.
 * Every element of O that a hidden value has touched is NaN by then: 0 times infinity or NaN is
 * NaN, and NaN it stays through every sum, factor (0 too) and rounding on its way to the 16 bits of
 * O, at which failed() looks. So the tile is done again.
 */
#ifndef FLASH_KERNELS_SM90_HIDDEN_VALUES_CUH
#define FLASH_KERNELS_SM90_HIDDEN_VALUES_CUH

#include "common/non_finite.cuh"
#include "sm90/block_state.cuh"

typedef struct guard {
    ring_t v;
    uint32_t landed_parities; /* a bit a stage */
} guard_t;

/* Zeroes what is not finite among the thread's chunks of a block; true: there was something. */
template <flash_config_t C>
static __device__ __forceinline__ bool hide_non_finite_values(uint32_t tile) {
    const uint32_t first = tile + threadIdx.x % warp_threads * SM90_CHUNK_BYTES;
    const uint32_t end = tile + kv_bytes<C>;
    uint32_t sum[4] = {0, 0, 0, 0};
#pragma unroll 8
    for (uint32_t chunk = first; chunk < end; chunk += warp_threads * SM90_CHUNK_BYTES) {
        const uint4 v = shared_load(chunk);
        sum[0] = multiply_add_pair<C.dtype>(v.x, 0, sum[0]);
        sum[1] = multiply_add_pair<C.dtype>(v.y, 0, sum[1]);
        sum[2] = multiply_add_pair<C.dtype>(v.z, 0, sum[2]);
        sum[3] = multiply_add_pair<C.dtype>(v.w, 0, sum[3]);
    }
    if (is_pair_of_zeros(sum[0] | sum[1] | sum[2] | sum[3]))
        return false;
#pragma unroll 1
    for (uint32_t chunk = first; chunk < end; chunk += warp_threads * SM90_CHUNK_BYTES)
        shared_store(chunk, finite_chunk<C.dtype>(shared_load(chunk)));
    return true;
}

/* Hands one block on to the consumers. place: of the tile among the assignments. */
template <flash_config_t C>
static __device__ __forceinline__ void guard_block(guard_t &guard, int place) {
    block_state_t &state = block_state<C>();
    const int stage = guard.v.stage;
    wait_full(state.v_landed[stage], guard.landed_parities >> stage & 1);
    guard.landed_parities ^= 1u << stage;
    const bool hidden = hide_non_finite_values<C>(v_tile<C>(stage));
    async_proxy_fence();
    if (__any_sync(0xffffffffu, hidden) && elect_one())
        *(volatile int32_t *)&state.values_hidden[place] = 1;
    __syncwarp();
    release(state.v_full[stage]);
}

template <flash_config_t C, bool FIXED>
static __device__ __forceinline__ void guard_tile(const tile_of<C> &t, guard_t &guard, int place) {
    for (int32_t block = t.block_end - 1; block >= t.block_begin; --block) {
        if (is_guarded<C, FIXED> && is_cut(t, block))
            guard_block<C>(guard, place);
        step<v_stages<C>>(guard.v);
    }
}

/* Asked when all blocks of V have come, before the assignment is released. */
template <flash_config_t C> static __device__ __forceinline__ bool values_hidden(int place) {
    return *(volatile int32_t *)&block_state<C>().values_hidden[place] != 0;
}

/* Adds what is not finite in column `column` of keys [begin, end) of V to an element of O. */
template <flash_config_t C>
static __device__ uint32_t add_non_finite_keys(uint32_t o, const uint16_t *v, int64_t stride,
                                               int64_t begin, int64_t end) {
#pragma unroll 1
    for (int64_t key = begin; key < end; ++key)
        o = add_non_finite<C.dtype>(o, v[key * stride]);
    return o;
}

/* Completes one row of O in global memory, which the warp has written: the keys that it sees in the
 * blocks that a mask cuts, left and right of the whole ones. */
template <flash_config_t C>
static __device__ void add_hidden_values(const flash_params_t &p, const tile_of<C> &t, int32_t row,
                                         uint16_t *o) {
    const uint16_t *v = (const uint16_t *)p.v + t.batch_index * p.v_stride.batch +
                        t.head / p.group * p.v_stride.head +
                        sequence_of<C>(p, t).k_begin * p.v_stride.seq;
    const flash_range_t keys = visible_keys<C>(p, t, row);
    const int64_t whole_begin = (int64_t)t.whole_begin * C.B_c;
    const int64_t whole_end = max((int64_t)t.whole_end * C.B_c, whole_begin);
#pragma unroll 1
    for (int column = threadIdx.x % warp_threads; column < p.d_head; column += warp_threads) {
        uint32_t x = o[column];
        x = add_non_finite_keys<C>(x, v + column, p.v_stride.seq, keys.begin,
                                   min(whole_begin, (int64_t)keys.end));
        x = add_non_finite_keys<C>(x, v + column, p.v_stride.seq,
                                   max(whole_end, (int64_t)keys.begin), keys.end);
        o[column] = (uint16_t)x;
    }
}

#endif
