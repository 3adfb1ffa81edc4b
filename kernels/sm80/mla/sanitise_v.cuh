/*
 * V is sanitised in steps that some row does not see whole. P is 0 for hidden keys, but 0 * NaN is
 * NaN. So NaN and infinities are added to the rows that see them, whatever their weight, and
 * replaced by zeros before V is multiplied. Each warp does so in its own columns, which only it
 * has O, when the scores of the step are complete.
 */
#ifndef FLASH_KERNELS_SM80_MLA_SANITISE_V_CUH
#define FLASH_KERNELS_SM80_MLA_SANITISE_V_CUH

#include "common/non_finite.cuh"
#include "common/ptx/shared_memory.cuh"
#include "sm80/mla/products.cuh"
#include "sm80/mla/walk.cuh"

/* Returns the lane's i-th chunk of the warp's panels. The lanes together have all chunks. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t lane_chunk(uint32_t stage, int i) {
    return stage + warp_number() * warp_panels<C> * panel_bytes<C> +
           (i * DECODE_WARP_THREADS + lane_number()) * DECODE_CHUNK_BYTES;
}

template <flash_config_t C>
constexpr int lane_chunks =
    warp_panels<C> *panel_bytes<C> / DECODE_CHUNK_BYTES / DECODE_WARP_THREADS;

template <flash_config_t C> static __device__ __forceinline__ bool has_non_finite(uint32_t stage) {
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < lane_chunks<C>; ++i)
        sum = add_zero_times_chunk<operand_dtype<C>>(sum, shared_load(lane_chunk<C>(stage, i)));
    return __any_sync(0xffffffffu, !is_pair_of_zeros(sum));
}

template <flash_config_t C> static __device__ __forceinline__ void zero_non_finite(uint32_t stage) {
#pragma unroll 1
    for (int i = 0; i < lane_chunks<C>; ++i) {
        const uint32_t address = lane_chunk<C>(stage, i);
        shared_store(address, finite_chunk<operand_dtype<C>>(shared_load(address)));
    }
}

/* Adds what is not finite of a pair of V's elements to the rows that see its key. n: the tile of
 * the pair's columns. */
template <flash_config_t C>
static __device__ __forceinline__ void add_non_finite(output_tile<C> &o, int n,
                                                      const mla_exchange<C> &shared, int32_t key,
                                                      const uint16_t (&pair)[2]) {
    if (is_finite<operand_dtype<C>>(pair[0]) && is_finite<operand_dtype<C>>(pair[1]))
        return;
#pragma unroll
    for (int m = 0; m < row_groups<C>; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (sees(shared.keys[m * SM80_MLA_ROW_GROUP + i / 2 * 8 + lane_number() / 4], key) &&
                !is_finite<operand_dtype<C>>(pair[i % 2]))
                o.o[m][n][i] += dtype_load<operand_dtype<C>>(pair, i % 2);
}

template <flash_config_t C>
static __device__ __forceinline__ void add_visible_non_finite(output_tile<C> &o,
                                                              const mla_exchange<C> &shared,
                                                              uint32_t stage, int32_t step_key) {
    const uint32_t panels = stage + warp_number() * warp_panels<C> * panel_bytes<C>;
#pragma unroll 1
    for (int key = 0; key < C.B_c; ++key)
#pragma unroll
        for (int n = 0; n < column_tiles<C>; ++n) {
            const uint32_t element = panels + n / line_chunks * panel_bytes<C> +
                                     chunk_offset(key, n % line_chunks) + lane_number() % 4 * 4;
            const uint16_t pair[2] = {(uint16_t)shared_load_16(element),
                                      (uint16_t)shared_load_16(element + 2)};
            add_non_finite<C>(o, n, shared, step_key + key, pair);
        }
}

template <flash_config_t C>
static __device__ __forceinline__ void sanitise_v(output_tile<C> &o, const mla_exchange<C> &shared,
                                                  uint32_t stage, int32_t step_key) {
    if (!has_non_finite<C>(stage))
        return;
    add_visible_non_finite<C>(o, shared, stage, step_key);
    __syncwarp();
    zero_non_finite<C>(stage);
    __syncwarp();
}

#endif
