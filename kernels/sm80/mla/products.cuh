/*
 * The two products of a step. S = Q K^T: warps with the same rows have each every n-th step of the
 * contraction, with Q in registers, and leave their parts of the sum in shared memory. O += P V:
 * each warp has all rows of its own columns.
 */
#ifndef FLASH_KERNELS_SM80_MLA_PRODUCTS_CUH
#define FLASH_KERNELS_SM80_MLA_PRODUCTS_CUH

#include "common/ptx/ldmatrix.cuh"
#include "sm80/mla/queries.cuh"
#include "sm80/ptx/mma.cuh"

/* ---- S ---- */

/* s[n]: the warp's 16 rows by keys n * 8 ... n * 8 + 7. */
template <flash_config_t C> struct score_tile { float s[key_tiles<C>][4]; };

/* Returns the address of the lane's line of a stage, for the warp's first step. */
template <flash_config_t C> static __device__ __forceinline__ uint32_t k_address(uint32_t stage) {
    const int lane = lane_number();
    return stage + chunk_offset(lane / 16 * 8 + lane % 8, 2 * score_part<C>() + lane / 8 % 2);
}

/* K of one of the warp's steps of the contraction, as the second operand of mma. */
template <flash_config_t C> struct key_fragments { uint32_t of[key_tiles<C> / 2][4]; };

/* address: of the warp's first step. */
template <flash_config_t C>
static __device__ __forceinline__ void load_key_fragments(key_fragments<C> &k, uint32_t address,
                                                          int step) {
    constexpr int steps_of_panel = panel_columns / (16 * sharing_warps<C>);
    const uint32_t swizzled =
        address ^ step % steps_of_panel * 2 * sharing_warps<C> * DECODE_CHUNK_BYTES;
#pragma unroll
    for (int n = 0; n < key_tiles<C> / 2; ++n)
        ldmatrix_x4(k.of[n],
                    swizzled + step / steps_of_panel * panel_bytes<C> + n * 16 * DECODE_LINE_BYTES);
}

/* Computes the warp's part of the scores of a step. beside(i) is called in each of the warp's steps
 * of the contraction. */
template <flash_config_t C, typename F>
static __device__ __forceinline__ void multiply_q_k(score_tile<C> &s, const query_fragments<C> &q,
                                                    uint32_t stage, const F &beside) {
    const uint32_t address = k_address<C>(stage);
    key_fragments<C> k[2];
    s = {};
    load_key_fragments<C>(k[0], address, 0);
#pragma unroll
    for (int i = 0; i < warp_steps<C>; ++i) {
        if (i + 1 < warp_steps<C>)
            load_key_fragments<C>(k[(i + 1) % 2], address, i + 1);
        beside(i);
#pragma unroll
        for (int n = 0; n < key_tiles<C>; ++n) {
            const uint32_t(&pair)[4] = k[i % 2].of[n / 2];
            mma_m16n8k16<operand_dtype<C>>(s.s[n], q.of[i], pair[n % 2 * 2], pair[n % 2 * 2 + 1]);
        }
    }
}

/* Scales scores, because K of e4m3 has a scale and rows of Q may have powers of two. */
template <flash_config_t C>
static __device__ __forceinline__ void scale_scores(score_tile<C> &s,
                                                    const mla_exchange<C> &shared) {
    if constexpr (has_scales<C>) {
        const float *const factors = shared.score_factors[score_part<C>()] + score_row<C>();
        const float of_half[2] = {factors[0], factors[8]};
#pragma unroll
        for (int n = 0; n < key_tiles<C>; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                s.s[n][i] *= of_half[i / 2];
    }
}

/* Leaves the warp's part of the scores for the warps with the same rows. */
template <flash_config_t C>
static __device__ __forceinline__ void leave_scores(mla_exchange<C> &shared, score_tile<C> &s) {
    const int group = score_group<C>(), part = score_part<C>(), lane = lane_number();
    scale_scores<C>(s, shared);
#pragma unroll
    for (int n = 0; n < key_tiles<C>; ++n)
        shared.scores[group][part][n][lane] = {s.s[n][0], s.s[n][1], s.s[n][2], s.s[n][3]};
}

/* Adds up the scores of the warp's rows in TILES tiles from the first one on. Every warp with these
 * rows gets the same bits. */
template <flash_config_t C, int TILES>
static __device__ __forceinline__ void take_scores(float (&s)[TILES][4],
                                                   const mla_exchange<C> &shared, int first) {
    const int group = score_group<C>(), lane = lane_number();
#pragma unroll
    for (int n = 0; n < TILES; ++n) {
        float4 sum = shared.scores[group][0][first + n][lane];
#pragma unroll
        for (int part = 1; part < sharing_warps<C>; ++part) {
            const float4 x = shared.scores[group][part][first + n][lane];
            sum = {sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w};
        }
        s[n][0] = sum.x, s[n][1] = sum.y, s[n][2] = sum.z, s[n][3] = sum.w;
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

/* parity: of the step, whose P lies in one of two places. */
template <flash_config_t C>
static __device__ __forceinline__ void
multiply_p_v(output_tile<C> &o, const mla_exchange<C> &shared, int parity, uint32_t stage) {
    const uint32_t address = v_address<C>(stage);
    const int lane = lane_number();
#pragma unroll
    for (int step = 0; step < key_steps<C>; ++step) {
        uint32_t p[row_groups<C>][4];
#pragma unroll
        for (int m = 0; m < row_groups<C>; ++m) {
            const uint4 x = shared.p[parity][m][step][lane];
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
                mma_m16n8k16<operand_dtype<C>>(o.o[m][n], p[m], v[0], v[1]);
                mma_m16n8k16<operand_dtype<C>>(o.o[m][n + 1], p[m], v[2], v[3]);
            }
        }
    }
}

#endif
