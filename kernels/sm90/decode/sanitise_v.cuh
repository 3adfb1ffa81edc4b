/*
 * V is sanitised in blocks that some row does not see whole. P is 0 for hidden keys, but 0 * NaN is
 * NaN, and wgmma cannot tell. So infinities and NaNs are added to the rows that see them, whatever
 * their weight, and replaced by zeros before they are multiplied. The consumers do it together.
 */
#ifndef FLASH_KERNELS_SM90_DECODE_SANITISE_V_CUH
#define FLASH_KERNELS_SM90_DECODE_SANITISE_V_CUH

#include "common/non_finite.cuh"
#include "sm90/decode/barriers.cuh"
#include "sm90/decode/walk.cuh"

template <flash_config_t C>
constexpr int thread_value_chunks = value_bytes<C> / SM90_CHUNK_BYTES / consumer_threads<C>;

/* Returns the address of the thread's i-th chunk of a tile of V. Together the consumers have all
 * chunks. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t thread_value_chunk(uint32_t tile, int i) {
    const int thread = threadIdx.x - SM90_WARPGROUP_THREADS;
    return tile + (i * consumer_threads<C> + thread) * SM90_CHUNK_BYTES;
}

/* Says whether any consumer has found an infinity or a NaN. */
template <flash_config_t C> static __device__ __forceinline__ bool has_non_finite(uint32_t tile) {
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < thread_value_chunks<C>; ++i)
        sum = add_zero_times_chunk<operand_dtype<C>>(sum,
                                                     shared_load(thread_value_chunk<C>(tile, i)));
    async_proxy_fence();
    return named_barrier_or(CONSUMERS_BARRIER, consumer_threads<C>, !is_pair_of_zeros(sum));
}

template <flash_config_t C> static __device__ __forceinline__ void zero_non_finite(uint32_t tile) {
#pragma unroll 1
    for (int i = 0; i < thread_value_chunks<C>; ++i) {
        const uint32_t address = thread_value_chunk<C>(tile, i);
        shared_store(address, finite_chunk<operand_dtype<C>>(shared_load(address)));
    }
    async_proxy_fence();
}

/* Returns the byte of a column at a key, in a tile that lies transposed (fp8/products.cuh). */
static __device__ __forceinline__ uint32_t load_transposed_value(uint32_t tile, int key,
                                                                 int column) {
    const int in_chunk = key % 8 / 2 * 4 + key / 8 % 2 * 2 + key % 2;
    return shared_load_8(tile + column * SM90_PANEL_BYTES +
                         (key / 16 ^ column % 8) * SM90_CHUNK_BYTES + in_chunk);
}

/* Returns the element of V in a column, at a key of the tile. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t load_value(uint32_t tile, int key, int column) {
    if constexpr (multiplies_e4m3<C>)
        return load_transposed_value(tile, key, column);
    const int in_panel = column % panel_elements<C>;
    const int chunk = in_panel / chunk_elements<C> ^ key % (SM90_PANEL_BYTES / SM90_CHUNK_BYTES);
    return shared_load_16(tile + column / panel_elements<C> * kv_panel_bytes<C> +
                          key * SM90_PANEL_BYTES + chunk * SM90_CHUNK_BYTES +
                          in_panel % chunk_elements<C> * element_bytes<C>);
}

/* Returns the fp32 of an element that is infinity or NaN. element: its bits. */
template <int DTYPE> static __device__ __forceinline__ float non_finite_value(uint32_t element) {
    const float magnitude = (element & 0x7fffu) == dtype_exponent_bits(DTYPE) ? INFINITY : NAN;
    return element & 0x8000u ? -magnitude : magnitude;
}

template <> __device__ __forceinline__ float non_finite_value<FLASH_DTYPE_E4M3>(uint32_t) {
    return NAN;
}

/* Adds the infinities and NaNs of V at one key to O, in those of the thread's rows that see the
 * key. */
template <flash_config_t C, int N>
static __device__ __forceinline__ void add_key(float (&o)[N], int first_column, uint32_t tile,
                                               int key, const bool (&seen)[2]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const int column = first_column + i / 4 * 8 + tile_column() + i % 2;
        const uint32_t element = load_value<C>(tile, key, column);
        if (!is_finite<operand_dtype<C>>(element) && seen[i / 2 % 2])
            o[i] += non_finite_value<operand_dtype<C>>(element);
    }
}

/* Sanitises V of a block, and completes O by what it zeroes. o: accumulators of the columns from
 * first_column on. first_key: the first key of the block, whose V is in the tile. No wgmma is under
 * way. */
template <flash_config_t C, int N>
static __device__ __forceinline__ void sanitise_v(float (&o)[N], int first_column, uint32_t tile,
                                                  const row_keys_t &keys, int32_t first_key) {
    if (!has_non_finite<C>(tile))
        return;
#pragma unroll 1
    for (int key = 0; key < C.B_c; ++key) {
        const bool seen[2] = {sees(keys, 0, first_key + key), sees(keys, 1, first_key + key)};
        add_key<C>(o, first_column, tile, key, seen);
    }
    meet_consumers<C>();
    zero_non_finite<C>(tile);
    meet_consumers<C>();
}

#endif
