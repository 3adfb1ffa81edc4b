/*
 * A warpgroup issues two matrix products for its 64 rows: S = Q K^T from shared memory, and O += P
 * V with P from registers. The caller waits for them.
 */
#ifndef FLASH_KERNELS_SM90_MMA_PRODUCTS_CUH
#define FLASH_KERNELS_SM90_MMA_PRODUCTS_CUH

#include "common/ptx/convert.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "sm90/block_state.cuh"
#include "sm90/fp8/products.cuh"
#include "sm90/fragments.cuh"
#include "sm90/ptx/descriptor.cuh"
#include "sm90/ptx/wgmma.cuh"

/* Returns where step `step` along d_head begins in a tile of panels. */
static constexpr __device__ __forceinline__ uint32_t head_step_offset(int step, int panel_bytes) {
    return step / steps_per_panel * panel_bytes + step % steps_per_panel * step_bytes;
}

template <flash_config_t C>
static __device__ __forceinline__ void load_queries(query_fragments<C> &q) {
    const uint32_t rows = q_tile<C>(0) + warp_row() * SM90_PANEL_BYTES;
#pragma unroll
    for (int i = 0; i < head_steps<C>; ++i)
        ldmatrix_x4(q.q[i], fragment_row(rows, i, q_panel_bytes<C>));
}

/* Issues S = Q K^T. q_rows: where the warpgroup's rows begin in shared memory; stage: that of K. */
template <flash_config_t C>
static __device__ __forceinline__ void issue_scores(score_tile<C> &s, const query_fragments<C> &q,
                                                    uint32_t q_rows, int stage) {
    const uint32_t q_first = uniform(descriptor_low(q_rows, 0));
    const uint32_t k = descriptor_low(k_tile<C>(stage), 0);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < head_steps<C>; ++i) {
        const uint64_t k_step = descriptor(k, head_step_offset(i, kv_panel_bytes<C>));
        if constexpr (q_in_registers<C>)
            wgmma<operand_dtype<C>, C.B_c>::template register_a<0>(s.s, q.q[i], k_step, i > 0);
        else
            wgmma<operand_dtype<C>, C.B_c>::shared_a(
                s.s, descriptor(q_first, head_step_offset(i, q_panel_bytes<C>)), k_step, i > 0);
    }
    wgmma_commit();
}

/* ptxas gives no instruction more than the registers that all of the block's threads could have,
 * 128 beside a converter: PV of 256 columns then is two products of 128. */
template <flash_config_t C> constexpr int output_parts = converts<C> &&d_head_v<C> > 128 ? 2 : 1;

template <flash_config_t C>
static __device__ __forceinline__ void issue_output(output_tile<C> &o, const probability_tile<C> &p,
                                                    int stage) {
    constexpr int step_bytes_down = 16 * SM90_PANEL_BYTES; /* sixteen keys */
    constexpr int columns = d_head_v<C> / output_parts<C>, registers = columns / 2;
    constexpr int part_bytes = columns / panel_elements<C> * kv_panel_bytes<C>;
    const uint32_t v = descriptor_low(v_tile<C>(stage), kv_panel_bytes<C>);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < key_steps<C>; ++i)
#pragma unroll
        for (int part = 0; part < output_parts<C>; ++part)
            wgmma<operand_dtype<C>, columns>::template register_a<1>(
                *(float(*)[registers])(o.o + part * registers), p.p[i],
                descriptor(v, i * step_bytes_down + part * part_bytes), true);
    wgmma_commit();
}

template <flash_config_t C>
static __device__ __forceinline__ void round_probabilities(probability_tile<C> &p,
                                                           const score_tile<C> &s) {
    if constexpr (multiplies_e4m3<C>) {
        round_to_e4m3<C>(p, s);
    } else {
#pragma unroll
        for (int i = 0; i < key_steps<C>; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j)
                p.p[i][j] =
                    convert_pair<operand_dtype<C>>(s.s[8 * i + 2 * j], s.s[8 * i + 2 * j + 1]);
    }
}

#endif
