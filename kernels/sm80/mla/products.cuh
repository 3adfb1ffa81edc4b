/*
 * The two products of a step. S = Q K^T: warps with the same rows have each every n-th step of the
 * contraction, with Q in registers, and leave their parts of the sum in shared memory. O += P V:
 * each warp has all rows of its own columns.
 */
#ifndef FLASH_KERNELS_SM80_MLA_PRODUCTS_CUH
#define FLASH_KERNELS_SM80_MLA_PRODUCTS_CUH

#include "common/decode/rows.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "sm80/mla/derive.cuh"
#include "sm80/ptx/mma.cuh"

/* The rows whose scores the warp computes, and its number among the warps with these rows. */
template <flash_config_t C> static __device__ __forceinline__ int score_group() {
    return warp_number() / sharing_warps<C>;
}

template <flash_config_t C> static __device__ __forceinline__ int score_part() {
    return warp_number() % sharing_warps<C>;
}

/* ---- S ---- */

/* The warp's rows of Q in its steps of the contraction, as the first operand of mma. */
template <flash_config_t C> struct query_fragments { uint32_t of[warp_steps<C>][4]; };

static __device__ __forceinline__ uint32_t load_pair_if(const char *pointer, bool exists) {
    return exists ? __ldg((const uint32_t *)pointer) : 0;
}

template <flash_config_t C>
static __device__ __forceinline__ void load_queries(query_fragments<C> &q,
                                                    const sm80_decode_params_t &params,
                                                    const decode_block_t &block) {
    const flash_params_t &p = params.attention;
    const int first_column = score_part<C>() * 16 + lane_number() % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = score_group<C>() * SM80_MLA_ROW_GROUP + half * 8 + lane_number() / 4;
        const bool exists = row < block.rows;
        const head_row_t at = find_row(params, block.row_begin + (exists ? row : 0));
        const char *const data =
            (const char *)p.q +
            (row_offset(p, p.q_stride, block, block.first_head_kv, at) + first_column) *
                dtype_size(C.dtype);
#pragma unroll
        for (int i = 0; i < warp_steps<C>; ++i)
#pragma unroll
            for (int next = 0; next < 2; ++next) {
                const int column = i * sharing_warps<C> * 16 + next * 8;
                q.of[i][2 * next + half] = load_pair_if(data + column * dtype_size(C.dtype),
                                                        exists && first_column + column < p.d_head);
            }
    }
}

/* s[n]: the warp's 16 rows by keys n * 8 ... n * 8 + 7. */
template <flash_config_t C> struct score_tile { float s[key_tiles<C>][4]; };

/* Returns the address of the lane's line of a stage, for the warp's first step. */
template <flash_config_t C> static __device__ __forceinline__ uint32_t k_address(uint32_t stage) {
    const int lane = lane_number();
    return stage + chunk_offset(lane / 16 * 8 + lane % 8, 2 * score_part<C>() + lane / 8 % 2);
}

/* Computes the warp's part of the scores of a step. */
template <flash_config_t C>
static __device__ __forceinline__ void multiply_q_k(score_tile<C> &s, const query_fragments<C> &q,
                                                    uint32_t stage) {
    constexpr int steps_of_panel = panel_columns / (16 * sharing_warps<C>);
    const uint32_t address = k_address<C>(stage);
    s = {};
#pragma unroll
    for (int i = 0; i < warp_steps<C>; ++i) {
        const uint32_t swizzled =
            address ^ i % steps_of_panel * 2 * sharing_warps<C> * DECODE_CHUNK_BYTES;
#pragma unroll
        for (int n = 0; n < key_tiles<C>; n += 2) {
            uint32_t k[4];
            ldmatrix_x4(k,
                        swizzled + i / steps_of_panel * panel_bytes<C> + n * 8 * DECODE_LINE_BYTES);
            mma_m16n8k16<C.dtype>(s.s[n], q.of[i], k[0], k[1]);
            mma_m16n8k16<C.dtype>(s.s[n + 1], q.of[i], k[2], k[3]);
        }
    }
}

/* Leaves the warp's part of the scores for the warps with the same rows. */
template <flash_config_t C>
static __device__ __forceinline__ void leave_scores(mla_exchange<C> &shared,
                                                    const score_tile<C> &s) {
#pragma unroll
    for (int n = 0; n < key_tiles<C>; ++n)
        shared.scores[score_group<C>()][score_part<C>()][n][lane_number()] = {s.s[n][0], s.s[n][1],
                                                                              s.s[n][2], s.s[n][3]};
}

/* Adds up the scores of the warp's rows. All warps with these rows get the same bits. */
template <flash_config_t C>
static __device__ __forceinline__ void take_scores(score_tile<C> &s,
                                                   const mla_exchange<C> &shared) {
    s = {};
#pragma unroll
    for (int part = 0; part < sharing_warps<C>; ++part)
#pragma unroll
        for (int n = 0; n < key_tiles<C>; ++n) {
            const float4 x = shared.scores[score_group<C>()][part][n][lane_number()];
            s.s[n][0] += x.x, s.s[n][1] += x.y, s.s[n][2] += x.z, s.s[n][3] += x.w;
        }
}

/* ---- O ---- */

/* o[m][n]: rows m * 16 ... m * 16 + 15 by the warp's columns n * 8 ... n * 8 + 7. */
template <flash_config_t C> struct output_tile { float o[row_groups<C>][column_tiles<C>][4]; };

/* Returns the address of the lane's line of the warp's first panel, which ldmatrix transposes. */
template <flash_config_t C> static __device__ __forceinline__ uint32_t v_address(uint32_t stage) {
    const int lane = lane_number();
    return stage + warp_number() * warp_panels<C> * panel_bytes<C> +
           chunk_offset(lane / 8 % 2 * 8 + lane % 8, lane / 16);
}

template <flash_config_t C>
static __device__ __forceinline__ void multiply_p_v(output_tile<C> &o,
                                                    const mla_exchange<C> &shared, uint32_t stage) {
    const uint32_t address = v_address<C>(stage);
#pragma unroll
    for (int step = 0; step < key_steps<C>; ++step) {
        uint32_t p[row_groups<C>][4];
#pragma unroll
        for (int m = 0; m < row_groups<C>; ++m) {
            const uint4 x = shared.p[m][step][lane_number()];
            p[m][0] = x.x, p[m][1] = x.y, p[m][2] = x.z, p[m][3] = x.w;
        }
#pragma unroll
        for (int n = 0; n < column_tiles<C>; n += 2) {
            uint32_t v[4];
            ldmatrix_x4_trans(v, (address ^ n % line_chunks * DECODE_CHUNK_BYTES) +
                                     n / line_chunks * panel_bytes<C> +
                                     step * 16 * DECODE_LINE_BYTES);
#pragma unroll
            for (int m = 0; m < row_groups<C>; ++m) {
                mma_m16n8k16<C.dtype>(o.o[m][n], p[m], v[0], v[1]);
                mma_m16n8k16<C.dtype>(o.o[m][n + 1], p[m], v[2], v[3]);
            }
        }
    }
}

#endif
