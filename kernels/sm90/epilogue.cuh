/*
 * O and LSE of a tile, on their way to global memory. O is staged in shared memory where it has a
 * place there; else it leaves from registers, the quad that holds a row exchanging words so that
 * each thread has chunks of eight columns next to each other.
 */
#ifndef FLASH_KERNELS_SM90_EPILOGUE_CUH
#define FLASH_KERNELS_SM90_EPILOGUE_CUH

#include "sm90/consumer.cuh"
#include "sm90/ptx/predicated.cuh"
#include "sm90/ptx/stmatrix.cuh"

/* Divides by the sums; a row that saw no key becomes 0. */
template <flash_config_t C>
static __device__ __forceinline__ void normalize_output(output_tile<C> &o,
                                                        const softmax_state_t &state) {
    rescale_t inverse;
#pragma unroll
    for (int half = 0; half < 2; ++half)
        inverse.factor[half] = state.sum[half] == 0.0f ? 0.0f : reciprocal_approx(state.sum[half]);
    rescale_output<C>(o, inverse);
}

/* Thread t of the quad gives word i to thread i, and gets word t of each. */
static __device__ __forceinline__ void transpose_in_quad(uint32_t (&w)[4]) {
    const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? w[i] : w[i + 1], 1);
        w[i] = odd ? other : w[i];
        w[i + 1] = odd ? w[i + 1] : other;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? w[i] : w[i + 2], 2);
        w[i] = upper ? other : w[i];
        w[i + 2] = upper ? w[i + 2] : other;
    }
}

/* No branch: the next tile's QK^T is under way. */
template <flash_config_t C>
static __device__ __forceinline__ void round_output(rounded_output<C> &rounded,
                                                    const output_tile<C> &o) {
#pragma unroll
    for (int i = 0; i < output_registers<C> / 2; ++i)
        rounded.w[i] = convert_pair<C.dtype>(o.o[2 * i], o.o[2 * i + 1]);
}

/* ---- through shared memory: see carrier.cuh ---- */

/* The place of V that takes the warpgroup's O, once no consumer reads it any more: the first
 * consumer's comes after those that are left to the next tile's first blocks, and so on. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t await_v_place(const consumer_state<C> &x) {
    ring_t place = x.v;
#pragma unroll
    for (int i = 0; i < v_places_beside_o<C>; ++i)
        step<v_stages<C>>(place);
#pragma unroll
    for (int i = 1; i < consumers<C>; ++i)
        if (i <= x.number && i % outputs_of_v_place<C> == 0)
            step<v_stages<C>>(place);
    wait_full(block_state<C>().v_empty[place.stage], place.parity ^ 1);
    return v_tile<C>(place.stage) + x.number % outputs_of_v_place<C> * warpgroup_output_bytes<C>;
}

/* Where the warpgroup's O begins, once its place is free. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t await_output_place(const consumer_state<C> &x) {
    if constexpr (place_of_o<C> == OUTPUT_IN_V)
        return await_v_place<C>(x);
    if constexpr (place_of_o<C> == OUTPUT_IN_Q)
        return q_tile<C>(0) + x.number * SM90_WARPGROUP_ROWS * panel_row_bytes;
    wait_full(block_state<C>().o_left, x.o_parity);
    return v_tile<C>(v_stages<C>) + x.number * warpgroup_output_bytes<C>;
}

template <flash_config_t C>
static __device__ __forceinline__ void stage_output(const rounded_output<C> &o, uint32_t place) {
    const uint32_t rows = place + warp_row_of_group() * panel_row_bytes;
#pragma unroll
    for (int i = 0; i < head_steps<C>; ++i)
        stmatrix_x4(fragment_row(rows, i, output_panel_bytes<C>), o.w[4 * i], o.w[4 * i + 1],
                    o.w[4 * i + 2], o.w[4 * i + 3]);
    async_proxy_fence();
}

/* Tells the carrier where the warpgroup's O of the tile before is; 0: nowhere. */
template <flash_config_t C>
static __device__ __forceinline__ void hand_over_output(uint32_t place,
                                                        const consumer_state<C> &x) {
    if constexpr (has_staged_output<C>) {
        block_state_t &state = block_state<C>();
        shared_store_if(threadIdx.x % SM90_WARPGROUP_THREADS == 0,
                        shared_address(&state.staged[x.number]), place);
        __syncwarp();
        release(state.o_staged[x.number]);
    }
}

/* ---- from registers ---- */

template <flash_config_t C>
static __device__ __forceinline__ uint16_t *output_row(const flash_params_t &p, const tile_of<C> &t,
                                                       int64_t row) {
    return (uint16_t *)p.o + t.batch_index * p.o_stride.batch + t.head * p.o_stride.head +
           (sequence_of<C>(p, t).q_begin + row) * p.o_stride.seq;
}

/* Column of the thread's chunk i. */
static __device__ __forceinline__ int chunk_column(int i) {
    return (4 * i + threadIdx.x % 4) * SM90_CHUNK_ELEMENTS;
}

template <flash_config_t C>
static __device__ __forceinline__ void store_row(uint16_t *row, int32_t columns, int half,
                                                 const rounded_output<C> &o) {
#pragma unroll
    for (int i = 0; i < C.d_head / 32; ++i) {
        uint32_t w[4];
#pragma unroll
        for (int j = 0; j < 4; ++j)
            w[j] = o.w[8 * i + 2 * j + half];
        transpose_in_quad(w);
        global_store_if(chunk_column(i) < columns, row + chunk_column(i),
                        uint4{w[0], w[1], w[2], w[3]});
    }
}

template <flash_config_t C>
static __device__ __forceinline__ void store_output(const flash_params_t &p, const tile_of<C> &t,
                                                    const rounded_output<C> &o) {
    const int32_t row = t.row_begin + tile_row(0);
    const int32_t len_q = sequence_of<C>(p, t).len_q;
    uint16_t *data = output_row<C>(p, t, row);
    store_row<C>(data, row < len_q ? p.d_head : 0, 0, o);
    store_row<C>(data + 8 * p.o_stride.seq, row + 8 < len_q ? p.d_head : 0, 1, o);
}

/* The rare tile: see hidden_values.cuh. The warp's rows, which it has just written. */
template <flash_config_t C>
static __device__ __forceinline__ void complete_output(const flash_params_t &p,
                                                       const tile_of<C> &t) {
    const int32_t first = t.row_begin + warp_row();
    __syncwarp();
#pragma unroll 1
    for (int32_t row = first; row < min(first + 16, sequence_of<C>(p, t).len_q); ++row)
        add_hidden_values<C>(p, t, row, output_row<C>(p, t, row));
}

/* Place of a query of the tile's sequence in LSE. No branch: see ptx/predicated.cuh. */
template <flash_config_t C>
static __device__ __forceinline__ int64_t lse_place(const flash_params_t &p, const tile_of<C> &t,
                                                    int32_t query) {
    int64_t head_stride = p.lse_stride.head;
    int64_t token = query;
    if constexpr (has_varlen<C>) {
        head_stride = block_state<C>().lse_head_stride;
        token += t.q_begin;
    }
    return t.batch_index * p.lse_stride.batch + t.head * head_stride + token * p.lse_stride.seq;
}

/* Two threads of each quad, a row each: see row_lse(). */
template <flash_config_t C>
static __device__ __forceinline__ void store_lse(const flash_params_t &p, const tile_of<C> &t,
                                                 float lse) {
    const int half = threadIdx.x % 4;
    const int32_t row = t.row_begin + tile_row(half);
    const int32_t len_q = sequence_of<C>(p, t).len_q;
    global_store_if(p.lse && half < 2 && row < len_q, p.lse + lse_place<C>(p, t, row), lse);
}

#endif
