/*
 * Q beside K of e4m3 is multiplied as fp16, so that Q of bf16 becomes fp16 in its slot, each row
 * times a power of two (common/fp16_rows.cuh). The powers and the magnitude of K's scale are
 * left to the consumers, which multiply the units of their rows by them (softmax/units.cuh); the
 * sign of the scale goes into Q, and so does a scale that is 0 or not finite: units are positive.
 */
#ifndef FLASH_KERNELS_SM90_LOAD_CONVERT_Q_CUH
#define FLASH_KERNELS_SM90_LOAD_CONVERT_Q_CUH

#include "common/scale.h"
#include "sm90/block_state.cuh"
#include "sm90/load/convert_q_chunk.cuh"

/* A lane has a chunk of a row in each panel, eight lanes have the row. */
template <flash_config_t C> struct row_chunks { uint4 of[q_panels<C>]; };

/* Returns the largest magnitude of a row of bf16, by its bits. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t largest_of_row(const row_chunks<C> &row) {
    uint32_t pair = 0;
#pragma unroll
    for (int i = 0; i < q_panels<C>; ++i)
        pair = larger_magnitudes(pair, row.of[i]);
    uint32_t largest = larger_of_pair(pair);
#pragma unroll
    for (int step = 1; step < 8; step *= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    return largest;
}

template <flash_config_t C>
static __device__ __forceinline__ row_chunks<C> load_q_row(uint32_t shared) {
    row_chunks<C> row;
#pragma unroll
    for (int i = 0; i < q_panels<C>; ++i)
        row.of[i] = shared_load(shared + i * q_panel_bytes<C>);
    return row;
}

template <flash_config_t C, bool BF16>
static __device__ __forceinline__ void store_q_row(uint32_t shared, const row_chunks<C> &row,
                                                   float factor) {
#pragma unroll
    for (int i = 0; i < q_panels<C>; ++i)
        shared_store(shared + i * q_panel_bytes<C>, convert_chunk<BF16>(row.of[i], factor));
}

/* A warp converts four rows at a time, of sixteen, or twice as many where there are registers. */
template <flash_config_t C> constexpr int row_sets = q_panels<C> > 2 ? 1 : 2;

/* Converts rows of the ring's slot, from `first` on. */
template <flash_config_t C, bool BF16>
static __device__ __forceinline__ void convert_rows(const ring_t &ring, int first, float factor) {
    const int thread = threadIdx.x % SM90_WARPGROUP_THREADS;
    int8_t *exponents = conversion_state<C>().q_exponent[q_turn<C>(ring)];
#pragma unroll 1
    for (int row = first + thread / 8; row < first + q_part_rows<C>; row += row_sets<C> * 16) {
        const uint32_t shared =
            q_tile<C>(ring.stage) + row * SM90_PANEL_BYTES + thread % 8 * SM90_CHUNK_BYTES;
        row_chunks<C> rows[row_sets<C>];
        int exponent[row_sets<C>];
#pragma unroll
        for (int i = 0; i < row_sets<C>; ++i)
            rows[i] = load_q_row<C>(shared + i * 16 * SM90_PANEL_BYTES);
#pragma unroll
        for (int i = 0; i < row_sets<C>; ++i)
            exponent[i] = BF16 ? fp16_exponent_of_row(largest_of_row<C>(rows[i])) : 0;
#pragma unroll
        for (int i = 0; i < row_sets<C>; ++i) {
            store_q_row<C, BF16>(shared + i * 16 * SM90_PANEL_BYTES, rows[i],
                                 BF16 ? power_of_two(exponent[i]) * factor : factor);
            if (thread % 8 == 0)
                exponents[row + i * 16] = (int8_t)exponent[i];
        }
    }
}

/* Says of Q of fp16, which stays as it is, that its rows have no powers. */
template <flash_config_t C>
static __device__ __forceinline__ void clear_exponents(int turn, int first) {
    const int row = threadIdx.x % SM90_WARPGROUP_THREADS;
    if (row < q_part_rows<C>)
        conversion_state<C>().q_exponent[turn][first + row] = 0;
}

/* A tile has these scales of K and V. */
typedef struct tile_scales {
    float k;
    float v;
} tile_scales_t;

template <flash_config_t C>
static __device__ __forceinline__ tile_scales_t load_scales(const flash_params_t &p,
                                                            const tile_of<C> &tile) {
    const int32_t head_kv = tile.head / p.group;
    return {flash_scale_at(&p.k_scale, tile.batch_index, head_kv),
            flash_scale_at(&p.v_scale, tile.batch_index, head_kv)};
}

/* Converts a tile's Q, part by part, and hands it on with the tile's scales. assignment_slot: that
 * of the tile's assignment. */
template <flash_config_t C>
static __device__ __forceinline__ void
convert_q(const flash_params_t &p, const tile_scales_t &scales, int assignment_slot, ring_t &ring) {
    conversion_state_t &state = conversion_state<C>();
    const int slot = ring.stage;
    const split_scale_t k_scale = split_scale(scales.k);
#pragma unroll 1
    for (int part = 0; part < q_parts<C>; ++part) {
        const int first = part * q_part_rows<C>;
        wait_full(state.q_landed[slot][part], ring.parity);
        if (threadIdx.x == first_converter<C>) {
            state.k_scale[q_turn<C>(ring)][part] = k_scale.magnitude;
            state.v_scale[assignment_slot] = scales.v;
        }
        if (p.q_dtype == FLASH_DTYPE_BF16)
            convert_rows<C, true>(ring, first, k_scale.of_q);
        else if (k_scale.of_q != 1.0f)
            convert_rows<C, false>(ring, first, k_scale.of_q);
        else
            clear_exponents<C>(q_turn<C>(ring), first);
        async_proxy_fence();
        mbarrier_arrive(shared_address(&state.q_full[slot][part]));
    }
    step<q_slots<C>>(ring);
}

#endif
