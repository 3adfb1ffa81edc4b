/*
 * A warp multiplies its rows with one block of keys: S = Q K^T and O += P V. The configuration says
 * how many fragments are loaded at a time; with double buffering the next ones load meanwhile.
 */
#ifndef FLASH_KERNELS_SM80_FORWARD_PRODUCTS_CUH
#define FLASH_KERNELS_SM80_FORWARD_PRODUCTS_CUH

#include "common/ptx/convert.cuh"
#include "sm80/forward/fragments.cuh"
#include "sm80/ptx/mma.cuh"

/* S and O are accumulators; ptx/mma.cuh says which four values of a tile a thread has. */
template <flash_config_t C> struct score_tile { float s[m_tiles<C>][key_tiles<C>][4]; };

template <flash_config_t C> struct output_tile { float o[m_tiles<C>][head_tiles<C>][4]; };

/* P, rounded to the operand type. The accumulators of S already lie as fragments of A do. */
template <flash_config_t C> struct probabilities { uint32_t p[m_tiles<C>][key_steps<C>][4]; };

/* Q stays in registers for the whole tile if the configuration says so. */
template <flash_config_t C> struct q_block {
    q_fragments<C> step[q_resident<C> ? head_steps<C> : 1];
};

template <flash_config_t C>
static __device__ __forceinline__ void load_q_block(q_block<C> &q, const lane_address<C> &q_at) {
    if constexpr (q_resident<C>) {
#pragma unroll
        for (int step = 0; step < head_steps<C>; ++step)
            load_q<C>(q.step[step], q_at, step);
    }
}

/* The operands of steps [begin, begin + score_steps) of the contraction, as far as they exist. */
template <flash_config_t C> struct score_operands {
    q_fragments<C> q[score_steps<C>];
    k_fragments<C> k[score_steps<C>];
};

template <flash_config_t C>
static __device__ __forceinline__ void load_score_operands(score_operands<C> &operands,
                                                           const lane_address<C> &q_at,
                                                           const lane_address<C> &k_at, int begin) {
#pragma unroll
    for (int i = 0; i < score_steps<C>; ++i) {
        if (begin + i >= head_steps<C>)
            break;
        if constexpr (!q_resident<C>)
            load_q<C>(operands.q[i], q_at, begin + i);
        load_k<C>(operands.k[i], k_at, begin + i);
    }
}

template <flash_config_t C>
static __device__ __forceinline__ void multiply_scores(score_tile<C> &s, const q_fragments<C> &q,
                                                       const k_fragments<C> &k) {
#pragma unroll
    for (int n = 0; n < key_tiles<C>; ++n)
#pragma unroll
        for (int m = 0; m < m_tiles<C>; ++m)
            mma_m16n8k16<operand_dtype<C>>(s.s[m][n], q.r[m], k.r[n / 2][n % 2 * 2],
                                           k.r[n / 2][n % 2 * 2 + 1]);
}

template <flash_config_t C>
static __device__ __forceinline__ void compute_scores(score_tile<C> &s, const q_block<C> &q,
                                                      const lane_address<C> &q_at,
                                                      const lane_address<C> &k_at) {
    constexpr int buffers = score_buffers<C>;
    score_operands<C> operands[buffers];
    s = {};
    load_score_operands<C>(operands[0], q_at, k_at, 0);
#pragma unroll
    for (int step = 0; step < head_steps<C>; step += score_steps<C>) {
        const int set = step / score_steps<C> % buffers;
        if (buffers == 1 && step > 0)
            load_score_operands<C>(operands[0], q_at, k_at, step);
        if (buffers == 2 && step + score_steps<C> < head_steps<C>)
            load_score_operands<C>(operands[1 - set], q_at, k_at, step + score_steps<C>);
#pragma unroll
        for (int i = 0; i < score_steps<C>; ++i)
            if (step + i < head_steps<C>)
                multiply_scores<C>(s, q_resident<C> ? q.step[step + i] : operands[set].q[i],
                                   operands[set].k[i]);
    }
}

template <flash_config_t C>
static __device__ __forceinline__ probabilities<C> round_probabilities(const score_tile<C> &s) {
    probabilities<C> p;
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int n = 0; n < key_tiles<C>; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                p.p[m][n / 2][n % 2 * 2 + half] =
                    convert_pair<operand_dtype<C>>(s.s[m][n][2 * half], s.s[m][n][2 * half + 1]);
    return p;
}

template <flash_config_t C>
static __device__ __forceinline__ void load_value_operands(v_fragments<C> (&v)[value_steps<C>],
                                                           const lane_address<C> &v_at, int begin) {
#pragma unroll
    for (int i = 0; i < value_steps<C>; ++i)
        if (begin + i < key_steps<C>)
            load_v<C>(v[i], v_at, begin + i);
}

template <flash_config_t C>
static __device__ __forceinline__ void multiply_values(output_tile<C> &o, const probabilities<C> &p,
                                                       const v_fragments<C> &v, int step) {
#pragma unroll
    for (int n = 0; n < head_tiles<C>; ++n)
#pragma unroll
        for (int m = 0; m < m_tiles<C>; ++m)
            mma_m16n8k16<operand_dtype<C>>(o.o[m][n], p.p[m][step], v.r[n / 2][n % 2 * 2],
                                           v.r[n / 2][n % 2 * 2 + 1]);
}

template <flash_config_t C>
static __device__ __forceinline__ void
accumulate_output(output_tile<C> &o, const probabilities<C> &p, const lane_address<C> &v_at) {
    constexpr int buffers = value_buffers<C>;
    v_fragments<C> v[buffers][value_steps<C>];
    load_value_operands<C>(v[0], v_at, 0);
#pragma unroll
    for (int step = 0; step < key_steps<C>; step += value_steps<C>) {
        const int set = step / value_steps<C> % buffers;
        if (buffers == 1 && step > 0)
            load_value_operands<C>(v[0], v_at, step);
        if (buffers == 2 && step + value_steps<C> < key_steps<C>)
            load_value_operands<C>(v[1 - set], v_at, step + value_steps<C>);
#pragma unroll
        for (int i = 0; i < value_steps<C>; ++i)
            if (step + i < key_steps<C>)
                multiply_values<C>(o, p, v[set][i], step + i);
    }
}

#endif
