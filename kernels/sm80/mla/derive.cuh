/*
 * These constants follow from the configuration of an SM80_MLA or SM80_WIDE kernel, which is
 * checked at compile time, and say how shared memory is laid out:
 *
 *     0                                               sm80_mla_shared_bytes()
 *     | K 0 | K 1 | K 2 | ... | mla_exchange          |
 *       stages of B_c keys      scores, P, rows
 *
 *     | K 0 | K 1 | bytes 0 | bytes 1 | ... | mla_exchange          |      of e4m3
 *       stages      landings of B_c keys
 *
 *     | K 0 | K 1 | ... | V 0 | V 1 | ... | mla_exchange            |      SM80_WIDE
 *     | K | V | bytes of K and V 0 | 1 | ... | mla_exchange         |      SM80_WIDE, of e4m3
 *
 * A stage has panels of 64 columns: lines of 128 bytes, one for each key, of eight chunks of 16
 * bytes, which are swizzled so that those at the same place of eight neighbouring lines are in
 * different banks.
 */
#ifndef FLASH_KERNELS_SM80_MLA_DERIVE_CUH
#define FLASH_KERNELS_SM80_MLA_DERIVE_CUH

#include "common/bias.h"
#include "common/kv.h"
#include "common/latent.h"
#include "common/operand.cuh"
#include "common/ptx/opaque.cuh"
#include "sm80/mla_kernel.h"

/* ---- Warps. Scores: a group of warps has the same 16 rows, and each the products of every n-th
 * step of the contraction. O: each warp has all rows of some columns. ---- */

template <flash_config_t C> constexpr int row_groups = C.B_r / SM80_MLA_ROW_GROUP;
template <flash_config_t C> constexpr int sharing_warps = sm80_mla_sharing_warps(&C);

/* These are computed anew at each call, because registers are full. */
static __device__ __forceinline__ int warp_number() {
    return (int)(opaque(threadIdx.x) / DECODE_WARP_THREADS);
}

static __device__ __forceinline__ int lane_number() {
    return (int)(opaque(threadIdx.x) % DECODE_WARP_THREADS);
}

/* ---- Elements of K; Q, P and the operands of mma have 16 bits ---- */

/* ---- mma tiles (m16n8k16) ---- */

template <flash_config_t C> constexpr int head_steps = C.d_head / 16; /* contraction of Q K^T */
template <flash_config_t C> constexpr int warp_steps = head_steps<C> / sharing_warps<C>;
template <flash_config_t C> constexpr int key_tiles = C.B_c / 8;  /* columns of S */
template <flash_config_t C> constexpr int key_steps = C.B_c / 16; /* contraction of P V */
template <flash_config_t C> constexpr int value_columns = sm80_mla_d_head_v(&C);
template <flash_config_t C> constexpr int warp_columns = value_columns<C> / C.n_warps; /* of O */
template <flash_config_t C> constexpr int column_tiles = warp_columns<C> / 8;

/* Tiles of S that a warp turns into P. Where there are fewer tiles than warps, some have none.
 */
template <flash_config_t C>
constexpr int own_tiles = key_tiles<C> > sharing_warps<C> ? key_tiles<C> / sharing_warps<C> : 1;

/* ---- Features: every kernel has causal masks, windows, softcap and lengths ---- */

template <flash_config_t C> constexpr bool has_pages = (C.features & FLASH_FEATURE_PAGED) != 0;
template <flash_config_t C> constexpr bool has_bias = (C.features & FLASH_FEATURE_BIAS) != 0;
/* Holes of a page table hide keys. */
template <flash_config_t C> constexpr bool hides_holes = sm80_mla_hides_holes(&C) != 0;

/* ---- Shared memory ---- */

/* The tensors of keys. V is the first columns of K, or has stages of its own, behind those of K. */
enum key_tensor { TENSOR_K, TENSOR_V };
template <flash_config_t C> constexpr bool v_in_k = sm80_mla_v_in_k(&C) != 0;
template <flash_config_t C> constexpr int key_tensors = sm80_mla_tensors(&C);

constexpr int panel_columns = 64;
constexpr int line_chunks = int{DECODE_LINE_BYTES} / int{DECODE_CHUNK_BYTES};
constexpr int chunk_columns = panel_columns / line_chunks;
template <flash_config_t C> constexpr int key_panels = C.d_head / panel_columns;
template <flash_config_t C> constexpr int panel_bytes = C.B_c *DECODE_LINE_BYTES;
template <flash_config_t C> constexpr int stage_bytes = sm80_mla_stage_bytes(&C);
template <flash_config_t C> constexpr int ring_bytes = sm80_mla_stages(&C) * stage_bytes<C>;
template <flash_config_t C> constexpr int all_rings_bytes = key_tensors<C> *ring_bytes<C>;
template <flash_config_t C> constexpr int warp_panels = warp_columns<C> / panel_columns;

/* Returns the offset of a chunk of a panel's line. */
static __device__ __forceinline__ int chunk_offset(int line, int chunk) {
    return line * DECODE_LINE_BYTES + (chunk ^ line % line_chunks) * DECODE_CHUNK_BYTES;
}

/* The bias's row of each row of the block; kernels without bias have none. */
template <flash_config_t C, bool HAS_BIAS = has_bias<C>> struct row_biases {};
template <flash_config_t C> struct row_biases<C, true> { flash_bias_row_t of[C.B_r]; };

/* This is exchanged between warps. Scores and P lie as the registers of mma do, for each lane; P of
 * two steps. */
template <flash_config_t C> struct mla_exchange {
    float4 scores[row_groups<C>][sharing_warps<C>][key_tiles<C>][DECODE_WARP_THREADS];
    uint4 p[2][row_groups<C>][key_steps<C>][DECODE_WARP_THREADS];
    flash_range_t keys[C.B_r]; /* that the row sees in the piece */
    float factor[C.B_r];       /* of the row's O where its maximum is raised */
    float sink[C.B_r];
    float max[C.B_r];                                 /* at the end */
    union {                                           /* each warp has its own */
        float score_factors[sharing_warps<C>][C.B_r]; /* of its parts of scores (queries.cuh) */
        float sum[sharing_warps<C>][C.B_r];           /* at the end, of its keys */
    };
    [[no_unique_address]] row_biases<C> biases;
};

template <flash_config_t C> __device__ constexpr void assert_mla() {
    static_assert(has_half_operands<C>, "mma.m16n8k16 and ldmatrix have elements of 16 bits");
    static_assert(!is_latent<C> || v_in_k<C>, "V of latent tokens is in K");
    static_assert(SM80_MLA_TOKEN_BYTES == LATENT_CODES + 2 * LATENT_ROTARY, "as memory has it");
    SM80_MLA_RULES(ASSERT_RULE, &C)
    static_assert(sizeof(mla_exchange<C>) == sm80_mla_exchange_bytes(&C), "as the host counts");
}

#endif
