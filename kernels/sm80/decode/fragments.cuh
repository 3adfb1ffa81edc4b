/*
 * K and V are loaded from a slot as the first operands of the products, A of mma. ldmatrix loads
 * units of 16 bits, and a unit of e4m3 is two elements. Let g = lane / 4 and t = lane % 4.
 *
 * K of e4m3: a lane gets columns 4t ... 4t + 3 of a key, where mma wants 2t, 2t + 1, 2t + 8 and 2t
 * + 9. The order of a contraction is free, so Q is loaded in the order of K (queries.cuh).
 *
 * V of e4m3: a unit, transposed, is columns 2g and 2g + 1 of a key. They become rows g and g + 8 of
 * a tile, and the columns of O come out in that order.
 */
#ifndef FLASH_KERNELS_SM80_DECODE_FRAGMENTS_CUH
#define FLASH_KERNELS_SM80_DECODE_FRAGMENTS_CUH

#include "common/ptx/e4m3.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "sm80/decode/derive.cuh"

/* The head tiles that one ldmatrix loads, of 16 keys. */
template <flash_config_t C> struct key_fragments { uint32_t of[load_tiles<C>][4]; };

/* Returns the column, in a head tile, of the first element of a lane's pair. */
template <flash_config_t C> static __device__ __forceinline__ int query_column(int half) {
    const int t = threadIdx.x % 4;
    return converts<C> ? 4 * t + 2 * half : 2 * t + 8 * half;
}

/* Returns the column of O that a lane has in a head tile. */
template <flash_config_t C>
static __device__ __forceinline__ int output_column(int head_tile, int half) {
    const int g = threadIdx.x % DECODE_WARP_THREADS / 4;
    return head_tile * 16 + (converts<C> ? 2 * g + half : half * 8 + g);
}

/* Loads keys g and g + 8 of load_tiles head tiles. */
template <flash_config_t C>
static __device__ __forceinline__ key_fragments<C> load_key_fragments(uint32_t address) {
    key_fragments<C> k;
    ldmatrix_x4(k.of[0], address);
    if constexpr (converts<C>) {
        const e4m3_pairs_t x[4] = {fp16_from_e4m3(k.of[0][0]), fp16_from_e4m3(k.of[0][1]),
                                   fp16_from_e4m3(k.of[0][2]), fp16_from_e4m3(k.of[0][3])};
#pragma unroll
        for (int key = 0; key < 2; ++key)
#pragma unroll
            for (int tile = 0; tile < 2; ++tile) {
                k.of[tile][key] = x[2 * tile + key].low;
                k.of[tile][2 + key] = x[2 * tile + key].high;
            }
    }
    return k;
}

/* Makes rows g and g + 8 of a tile from units of columns 2g and 2g + 1 at two keys. */
static __device__ __forceinline__ e4m3_pairs_t split_columns(uint32_t units) {
    return fp16_from_e4m3(__byte_perm(units, 0, 0x3120));
}

template <flash_config_t C>
static __device__ __forceinline__ key_fragments<C> load_value_fragments(uint32_t address) {
    key_fragments<C> v;
    ldmatrix_x4_trans(v.of[0], address);
    if constexpr (converts<C>) {
        const e4m3_pairs_t x[4] = {split_columns(v.of[0][0]), split_columns(v.of[0][1]),
                                   split_columns(v.of[0][2]), split_columns(v.of[0][3])};
#pragma unroll
        for (int tile = 0; tile < 2; ++tile)
#pragma unroll
            for (int keys = 0; keys < 2; ++keys) {
                v.of[tile][2 * keys] = x[2 * keys + tile].low;
                v.of[tile][2 * keys + 1] = x[2 * keys + tile].high;
            }
    }
    return v;
}

#endif
