/*
 * A warp multiplies its rows with a part of the columns, S = first rows x first columns and dP =
 * second rows x second columns, and adds products of P and dS with columns to gradients.
 */
#ifndef FLASH_KERNELS_SM80_BACKWARD_PRODUCTS_CUH
#define FLASH_KERNELS_SM80_BACKWARD_PRODUCTS_CUH

#include "common/ptx/convert.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "sm80/backward/layout.cuh"
#include "sm80/ptx/mma.cuh"

/* S or dP of a part, as accumulators: ptx/mma.cuh says which four values of a tile a thread has. */
template <flash_config_t C> struct score_part { float s[m_tiles<C>][part_tiles<C>][4]; };

/* P or dS of a part, rounded. The accumulators of S already lie as fragments of A do. */
template <flash_config_t C> struct operand_part { uint32_t a[m_tiles<C>][part_steps<C>][4]; };

/* The warp's rows and columns of a gradient. */
template <flash_config_t C> struct gradient_rows { float g[m_tiles<C>][gradient_tiles<C>][4]; };

/* rows: the lane's place in the warp's first tile of rows. columns: in the part's first tile. */
template <flash_config_t C>
static __device__ __forceinline__ void multiply_rows(score_part<C> &s, uint32_t rows,
                                                     uint32_t columns) {
    s = {};
#pragma unroll
    for (int step = 0; step < head_steps<C>; ++step) {
        uint32_t a[m_tiles<C>][4], b[part_steps<C>][4];
#pragma unroll
        for (int m = 0; m < m_tiles<C>; ++m)
            ldmatrix_x4(a[m], tile_address<C>(rows, m, step));
#pragma unroll
        for (int n = 0; n < part_steps<C>; ++n)
            ldmatrix_x4(b[n], tile_address<C>(columns, n, step));
#pragma unroll
        for (int n = 0; n < part_tiles<C>; ++n)
#pragma unroll
            for (int m = 0; m < m_tiles<C>; ++m)
                mma_m16n8k16<operand_dtype<C>>(s.s[m][n], a[m], b[n / 2][n % 2 * 2],
                                               b[n / 2][n % 2 * 2 + 1]);
    }
}

/* columns: the lane's place in the part's first tile, at the warp's first column of the gradient.
 */
template <flash_config_t C>
static __device__ __forceinline__ void add_product(gradient_rows<C> &sum, const operand_part<C> &x,
                                                   uint32_t columns) {
#pragma unroll
    for (int step = 0; step < part_steps<C>; ++step)
#pragma unroll
        for (int n = 0; n < gradient_tiles<C> / 2; ++n) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, tile_address<C>(columns, step, n));
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int m = 0; m < m_tiles<C>; ++m)
                    mma_m16n8k16<operand_dtype<C>>(sum.g[m][2 * n + half], x.a[m][step],
                                                   b[2 * half], b[2 * half + 1]);
        }
}

template <flash_config_t C>
static __device__ __forceinline__ operand_part<C> round_part(const score_part<C> &s) {
    operand_part<C> x;
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int n = 0; n < part_tiles<C>; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                x.a[m][n / 2][n % 2 * 2 + half] =
                    convert_pair<operand_dtype<C>>(s.s[m][n][2 * half], s.s[m][n][2 * half + 1]);
    return x;
}

#endif
