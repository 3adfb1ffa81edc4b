/*
 * V is sanitised as in decode/sanitise_v.cuh. It is the first columns of K, whose scores are
 * complete by then.
 */
#ifndef FLASH_KERNELS_SM90_MLA_SANITISE_V_CUH
#define FLASH_KERNELS_SM90_MLA_SANITISE_V_CUH

#include "sm90/decode/sanitise_v.cuh"
#include "sm90/mla/state.cuh"

/* A consumer's half of the columns of O. */
template <flash_config_t C> struct half_output { float o[half_registers<C>]; };

/* Returns the first of the thread's two rows, which are those of the same thread of the other
 * consumer. */
static __device__ __forceinline__ int32_t group_row() {
    return warp_row_of_group() + (int32_t)lane_index() / 4;
}

/* Adds the infinities and NaNs of V at one key to O, in those of the thread's rows that see the
 * key. */
template <flash_config_t C>
static __device__ __forceinline__ void add_key(half_output<C> &o, uint32_t tile, int key,
                                               int first_column, const bool (&seen)[2]) {
#pragma unroll
    for (int i = 0; i < half_registers<C>; ++i) {
        const int column = first_column + i / 4 * 8 + tile_column() + i % 2;
        const uint32_t element = load_value<C>(tile, key, column);
        if (!is_finite<C.dtype>(element) && seen[i / 2 % 2])
            o.o[i] += non_finite_value<C.dtype>(element);
    }
}

/* Sanitises K, and with it V, of a block, and completes O by what it zeroes. */
template <flash_config_t C>
static __device__ __forceinline__ void sanitise_half(half_output<C> &o, uint32_t tile,
                                                     const row_keys_t &keys, int32_t first_key,
                                                     int number) {
    if (!has_non_finite<C>(tile))
        return;
#pragma unroll 1
    for (int key = 0; key < C.B_c; ++key) {
        const bool seen[2] = {sees(keys, 0, first_key + key), sees(keys, 1, first_key + key)};
        add_key<C>(o, tile, key, number * half_columns<C>, seen);
    }
    meet_consumers<C>();
    zero_non_finite<C>(tile);
    meet_consumers<C>();
}

#endif
