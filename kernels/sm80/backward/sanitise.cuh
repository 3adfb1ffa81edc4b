/*
 * Operands of the gradients are sanitised where a mask hides a query from some keys of a tile only.
 * P and dS are 0 there, but 0 * NaN is NaN. So in the few blocks that a mask cuts, NaN and
 * infinities of rows that go by are replaced by zeros before they are multiplied, and flags say in
 * which rows they were: scores of such a Q or K, and dP of such a dO, are NaN again where they are
 * visible, and what was in dO is added to dV. V, which no gradient is a product of, stays as it is.
 *
 * Flags have three slots, which blocks take in turn: while one is read, the next is filled, and the
 * one after that is cleared, with one barrier for each block.
 */
#ifndef FLASH_KERNELS_SM80_BACKWARD_SANITISE_CUH
#define FLASH_KERNELS_SM80_BACKWARD_SANITISE_CUH

#include "common/non_finite.cuh"
#include "common/ptx/shared_memory.cuh"
#include "sm80/backward/layout.cuh"
#include "sm80/backward/products.cuh"
#include "sm80/backward/tile.cuh"

enum { FLAG_SLOTS = 3, FLAG_WORDS = 4 };

/* Flags of the first operand's rows and of the second's, and whether there are any. */
typedef struct non_finite_flags {
    uint32_t rows[2][FLAG_WORDS];
    uint32_t any[2];
} non_finite_flags_t;

static __device__ __forceinline__ non_finite_flags_t &flags_of(int slot) {
    __shared__ non_finite_flags_t flags[FLAG_SLOTS];
    return flags[slot];
}

static __device__ __forceinline__ void clear_flags(int slot) {
    if (threadIdx.x < sizeof(non_finite_flags_t) / sizeof(uint32_t))
        reinterpret_cast<uint32_t *>(&flags_of(slot))[threadIdx.x] = 0;
}

static __device__ __forceinline__ bool has_flags(int slot, int operand) {
    return *const_cast<volatile uint32_t *>(&flags_of(slot).any[operand]) != 0;
}

static __device__ __forceinline__ bool is_flagged(int slot, int operand, int row) {
    return flags_of(slot).rows[operand][row / 32] >> row % 32 & 1;
}

/* Zeroes what is not finite in the chunks of an operand that this thread has copied. */
template <flash_config_t C>
static __device__ __forceinline__ void zero_non_finite(uint32_t shared, int slot, int operand) {
    const int row = threadIdx.x / panel_chunks, chunk = threadIdx.x % panel_chunks;
    const uint32_t first = shared + operand * step_bytes<C> + chunk_offset<C>(row, chunk);
#pragma unroll 1
    for (int pass = 0; pass < step_rows<C>; pass += pass_rows<C>)
#pragma unroll
        for (int panel = 0; panel < row_panels<C>; ++panel) {
            const uint32_t at = first + pass * row_bytes<C> + panel * panel_chunks * chunk_bytes;
            const uint4 x = shared_load(at);
            if (is_pair_of_zeros(add_zero_times_chunk<operand_dtype<C>>(0, x)))
                continue;
            shared_store(at, finite_chunk<operand_dtype<C>>(x));
            atomicOr(&flags_of(slot).rows[operand][(row + pass) / 32], 1u << (row + pass) % 32);
            flags_of(slot).any[operand] = 1;
        }
}

/* Does so for a block, before the barrier that shows it to other threads. */
template <flash_config_t C>
static __device__ __forceinline__ void sanitise_block(uint32_t stage, int slot) {
    zero_non_finite<C>(stage, slot, 0);
    if constexpr (rows_are_keys<C>)
        zero_non_finite<C>(stage, slot, 1);
}

/* Makes scores, or dP, of flagged rows NaN. first: the part's first column in the block. */
template <flash_config_t C>
static __device__ __forceinline__ void spoil_flagged(score_part<C> &s, int slot, int operand,
                                                     int first) {
    if (!has_flags(slot, operand))
        return;
#pragma unroll
    for (int n = 0; n < part_tiles<C>; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const bool is_spoilt =
                is_flagged(slot, operand, first + n * 8 + column_of_thread() + i % 2);
#pragma unroll
            for (int m = 0; m < m_tiles<C>; ++m)
                s.s[m][n][i] = is_spoilt ? NAN : s.s[m][n][i];
        }
}

/* Adds what is not finite in a row of dO to dV of the keys that the query sees. */
template <flash_config_t C>
static __device__ __forceinline__ void
add_non_finite_row(gradient_rows<C> &d_v, const flash_backward_params_t &params,
                   const gradient_tile_t &tile, int32_t member, int32_t query) {
    const flash_params_t &p = params.forward;
    const flash_strides_t &stride = params.gradients.d_o_stride;
    const int64_t head = (int64_t)tile.head * p.group + member;
    const int64_t at = tile.batch_index * stride.batch + head * stride.head +
                       (tile.sequence.q_begin + query) * stride.seq;
    const int32_t first = share_of_warp<C>() * warp_columns<C> + column_of_thread();
#pragma unroll
    for (int n = 0; n < gradient_tiles<C>; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int32_t column = first + n * 8 + i;
            const float x = column < p.d_head_v
                                ? dtype_load<operand_dtype<C>>(params.gradients.d_o, at + column)
                                : 0.0f;
#pragma unroll
            for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const flash_range_t queries = columns_of_row<C>(
                        p, tile.sequence, tile.row_begin + row_of_thread<C>(m, half));
                    if (!isfinite(x) && query >= queries.begin && query < queries.end)
                        d_v.g[m][n][2 * half + i] += x;
                }
        }
}

/* Does so for the flagged rows of a block of queries. */
template <flash_config_t C>
static __device__ __forceinline__ void
add_non_finite_rows(gradient_rows<C> &d_v, const flash_backward_params_t &params,
                    const gradient_tile_t &tile, int slot, int32_t member, int32_t block) {
    if (!has_flags(slot, 1))
        return;
#pragma unroll 1
    for (int row = 0; row < step_rows<C>; ++row)
        if (is_flagged(slot, 1, row))
            add_non_finite_row<C>(d_v, params, tile, member, block * step_rows<C> + row);
}

#endif
