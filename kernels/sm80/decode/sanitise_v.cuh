/*
 * V is sanitised in steps that some row does not see whole. P is 0 for hidden keys, but 0 * NaN is
 * NaN. So NaN and infinities are added to the rows that see them, whatever their weight, and
 * replaced by zeros before V is multiplied.
 */
#ifndef FLASH_KERNELS_SM80_DECODE_SANITISE_V_CUH
#define FLASH_KERNELS_SM80_DECODE_SANITISE_V_CUH

#include "common/non_finite.cuh"
#include "common/ptx/shared_memory.cuh"
#include "sm80/decode/products.cuh"

/* Returns the lane's i-th chunk of a slot. The lanes together have all chunks. */
static __device__ __forceinline__ uint32_t lane_chunk(uint32_t slot, int i) {
    return slot +
           (i * DECODE_WARP_THREADS + threadIdx.x % DECODE_WARP_THREADS) * DECODE_CHUNK_BYTES;
}

template <flash_config_t C>
constexpr int lane_chunks = slot_bytes<C> / DECODE_CHUNK_BYTES / DECODE_WARP_THREADS;

template <flash_config_t C> static __device__ __forceinline__ bool has_non_finite(uint32_t slot) {
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < lane_chunks<C>; ++i)
        sum = add_zero_times_chunk<C.dtype>(sum, shared_load(lane_chunk(slot, i)));
    return __any_sync(0xffffffffu, !is_pair_of_zeros(sum));
}

template <flash_config_t C> static __device__ __forceinline__ void zero_non_finite(uint32_t slot) {
#pragma unroll 1
    for (int i = 0; i < lane_chunks<C>; ++i) {
        const uint32_t address = lane_chunk(slot, i);
        shared_store(address, finite_chunk<C.dtype>(shared_load(address)));
    }
}

/* Returns an infinity or a NaN from the bits of an element that is not finite. */
template <int DTYPE> static __device__ __forceinline__ float non_finite_value(uint32_t element) {
    const float magnitude = (element & 0x7fffu) == dtype_exponent_bits(DTYPE) ? INFINITY : NAN;
    return element & 0x8000u ? -magnitude : magnitude;
}

template <> __device__ __forceinline__ float non_finite_value<FLASH_DTYPE_E4M3>(uint32_t) {
    return NAN;
}

/* Returns the element of V, at a key of the slot, that belongs to an element of the lane's O. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t load_value(uint32_t slot, int key, int d, int half) {
    const int column = output_column<C>(d, half);
    const uint32_t chunk = slot + chunk_offset<C>(key, column / chunk_elements<C>);
    const uint32_t address = chunk + column % chunk_elements<C> * element_bytes<C>;
    return element_bytes<C> == 1 ? shared_load_8(address) : shared_load_16(address);
}

/* Adds one element of V to the rows that see its key, if it is not finite. */
template <flash_config_t C>
static __device__ __forceinline__ void add_non_finite(output_tile<C> &o, int d, int half,
                                                      const row_masks<C> &masks, int32_t key,
                                                      uint32_t element) {
    if (is_finite<C.dtype>(element))
        return;
    const float value = non_finite_value<C.dtype>(element);
#pragma unroll
    for (int n = 0; n < row_groups<C>; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j)
            if (sees<C>(masks, n, j, key))
                o.of[n][d][2 * half + j] += value;
}

template <flash_config_t C>
static __device__ __forceinline__ void add_visible_non_finite(output_tile<C> &o, uint32_t slot,
                                                              const row_masks<C> &masks,
                                                              int32_t step_key) {
#pragma unroll 1
    for (int key = 0; key < C.B_c; ++key)
#pragma unroll
        for (int d = 0; d < head_tiles<C>; ++d)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                add_non_finite<C>(o, d, half, masks, step_key + key,
                                  load_value<C>(slot, key, d, half));
}

template <flash_config_t C>
static __device__ __forceinline__ void sanitise_v(output_tile<C> &o, uint32_t slot,
                                                  const row_masks<C> &masks, int32_t step_key) {
    if (!has_non_finite<C>(slot))
        return;
    add_visible_non_finite<C>(o, slot, masks, step_key);
    __syncwarp();
    zero_non_finite<C>(slot);
    __syncwarp();
}

#endif
