/*
 * A consumer of a backward kernel issues two kinds of matrix products, each for its 64 rows. The
 * caller waits for them.
 */
#ifndef FLASH_KERNELS_SM90_BACKWARD_PRODUCTS_CUH
#define FLASH_KERNELS_SM90_BACKWARD_PRODUCTS_CUH

#include "sm90/backward/state.cuh"
#include "sm90/mma/products.cuh"

/* Returns where a consumer's 64 rows begin in a panel of both's. */
static __device__ __forceinline__ uint32_t own_rows(int consumer) {
    return (uint32_t)consumer * SM90_WARPGROUP_ROWS * SM90_PANEL_BYTES;
}

/* Issues d = A B^T, or d -= A B^T if it SUBTRACTS, of 64 rows of A and N of B, which have as many
 * columns. Panels of A are A_PANEL bytes apart. */
template <int DTYPE, int N, int COLUMNS, int A_PANEL, bool SUBTRACTS = false>
static __device__ __forceinline__ void issue_of_rows(float (&d)[N / 2], uint32_t a, uint32_t b) {
    const uint32_t a_first = uniform(descriptor_low(a, 0));
    const uint32_t b_first = descriptor_low(b, 0);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < COLUMNS / 16; ++i)
        wgmma<DTYPE, N>::template shared_a<SUBTRACTS ? -1 : 1>(
            d, descriptor(a_first, head_step_offset(i, A_PANEL)),
            descriptor(b_first, head_step_offset(i, N * SM90_PANEL_BYTES)), SUBTRACTS || i > 0);
    wgmma_commit();
}

/* Loads the fragments of the warp's sixteen rows, of the consumer's 64 that begin at `rows`. */
template <int COLUMNS, int A_PANEL>
static __device__ __forceinline__ void load_fragments(uint32_t (&a)[COLUMNS / 16][4],
                                                      uint32_t rows) {
    const uint32_t own = rows + warp_row_of_group() * SM90_PANEL_BYTES;
#pragma unroll
    for (int i = 0; i < COLUMNS / 16; ++i)
        ldmatrix_x4(a[i], fragment_row(own, i, A_PANEL));
}

/* Issues what issue_of_rows() does, of fragments of A. */
template <int DTYPE, int N, int COLUMNS, bool SUBTRACTS = false>
static __device__ __forceinline__ void
issue_of_row_fragments(float (&d)[N / 2], const uint32_t (&a)[COLUMNS / 16][4], uint32_t b) {
    const uint32_t b_first = descriptor_low(b, 0);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < COLUMNS / 16; ++i)
        wgmma<DTYPE, N>::template register_a<0, SUBTRACTS ? -1 : 1>(
            d, a[i], descriptor(b_first, head_step_offset(i, N * SM90_PANEL_BYTES)),
            SUBTRACTS || i > 0);
    wgmma_commit();
}

/* Issues d += A B, of fragments of 64 rows of A, and of ROWS rows of B of N columns; BACKWARDS: the
 * last sixteen rows first. */
template <int DTYPE, int ROWS, int N, bool BACKWARDS = false>
static __device__ __forceinline__ void
issue_of_fragments(float (&d)[N / 2], const uint32_t (&a)[ROWS / 16][4], uint32_t b) {
    constexpr int step_bytes_down = 16 * SM90_PANEL_BYTES;
    const uint32_t b_first = descriptor_low(b, ROWS * SM90_PANEL_BYTES);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < ROWS / 16; ++j) {
        const int i = BACKWARDS ? ROWS / 16 - 1 - j : j;
        wgmma<DTYPE, N>::template register_a<1>(d, a[i], descriptor(b_first, i * step_bytes_down),
                                                true);
    }
    wgmma_commit();
}

/* Makes fragments of accumulators of N columns. */
template <int DTYPE, int N>
static __device__ __forceinline__ void round_fragments(uint32_t (&a)[N / 16][4],
                                                       const float (&d)[N / 2]) {
#pragma unroll
    for (int i = 0; i < N / 16; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
            a[i][j] = convert_pair<DTYPE>(d[8 * i + 2 * j], d[8 * i + 2 * j + 1]);
}

/* Makes accumulators zero, before any product is issued. */
template <int N> static __device__ __forceinline__ void clear(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i)
        d[i] = 0.0f;
    pin_accumulators(d);
}

#endif
