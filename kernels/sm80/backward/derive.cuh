/*
 * These constants follow from a configuration, which is checked at compile time. Everything here is
 * a constant expression, so that kernels have no branch on a configuration field.
 *
 * A tile's rows stay: queries in the kernel of dQ, keys in that of dK and dV. Columns are the rows
 * that go by, keys or queries. Each side has two operands of the same rows: the first are Q and K,
 * the second dO and V.
 */
#ifndef FLASH_KERNELS_SM80_BACKWARD_DERIVE_CUH
#define FLASH_KERNELS_SM80_BACKWARD_DERIVE_CUH

#include "common/operand.cuh"
#include "sm80/backward_kernel.h"

/* Rows are keys, and columns queries. */
template <flash_config_t C> constexpr bool rows_are_keys = sm80_backward_has_keys(&C) != 0;

template <flash_config_t C> constexpr int tile_rows = sm80_backward_rows(&C);
template <flash_config_t C> constexpr int step_rows = sm80_backward_step(&C);
template <flash_config_t C> constexpr int sharing_warps = sm80_backward_sharing_warps(&C);
template <flash_config_t C> constexpr int block_threads = sm80_backward_threads(&C);

/* ---- mma tiles (m16n8k16) of a warp ---- */

template <flash_config_t C> constexpr int warp_rows = sm80_backward_warp_rows(&C);
template <flash_config_t C> constexpr int m_tiles = warp_rows<C> / 16;
template <flash_config_t C> constexpr int head_steps = C.d_head / 16; /* contraction of S and dP */
/* The columns of gradients that a warp has. */
template <flash_config_t C> constexpr int warp_columns = C.d_head / sharing_warps<C>;
template <flash_config_t C> constexpr int gradient_tiles = warp_columns<C> / 8;

/* S and dP of so many columns are computed at a time: what registers are left for, or the warp's
 * share. */
template <flash_config_t C> constexpr int share_columns = step_rows<C> / sharing_warps<C>;
template <flash_config_t C>
constexpr int most_part_columns = m_tiles<C> == 1 && !rows_are_keys<C> ? 64 : 32;
template <flash_config_t C>
constexpr int part_columns =
    share_columns<C> < most_part_columns<C> ? share_columns<C> : most_part_columns<C>;
template <flash_config_t C> constexpr int part_tiles = part_columns<C> / 8;
template <flash_config_t C> constexpr int part_steps = part_columns<C> / 16;
template <flash_config_t C> constexpr int parts = step_rows<C> / sharing_warps<C> / part_columns<C>;

/* ---- shared memory: rows of 16-byte chunks, in panels of 128 bytes, all banks ---- */

constexpr int element_bytes = SM80_BACKWARD_ELEMENT_BYTES;
constexpr int chunk_bytes = 16;
constexpr int chunk_elements = chunk_bytes / element_bytes;
constexpr int panel_chunks = 8;
constexpr int panel_elements = panel_chunks * chunk_elements;
template <flash_config_t C> constexpr int row_bytes = C.d_head *element_bytes;
template <flash_config_t C> constexpr int row_panels = C.d_head / panel_elements;
template <flash_config_t C> constexpr int tile_bytes = tile_rows<C> *row_bytes<C>;
template <flash_config_t C> constexpr int step_bytes = step_rows<C> *row_bytes<C>;
template <flash_config_t C>
constexpr int stage_bytes = 2 * step_bytes<C> + sm80_backward_sums_bytes(&C);

/* A pass of a copy is one chunk of a panel per thread. */
template <flash_config_t C> constexpr int pass_rows = block_threads<C> / panel_chunks;

/* ---- features ---- */

template <flash_config_t C>
constexpr bool has_mask = (C.features & (FLASH_FEATURE_CAUSAL | FLASH_FEATURE_WINDOW)) != 0;
template <flash_config_t C> constexpr bool has_window = (C.features & FLASH_FEATURE_WINDOW) != 0;
template <flash_config_t C> constexpr bool has_softcap = (C.features & FLASH_FEATURE_SOFTCAP) != 0;
template <flash_config_t C> constexpr bool has_varlen = (C.features & FLASH_FEATURE_VARLEN) != 0;
template <flash_config_t C> constexpr bool has_bias = (C.features & FLASH_FEATURE_BIAS) != 0;
template <flash_config_t C> constexpr bool has_dropout = (C.features & FLASH_FEATURE_DROPOUT) != 0;

/* ---- legality ---- */

template <flash_config_t C> __device__ constexpr void assert_legal() {
    static_assert(C.arch == FLASH_ARCH_SM80, "a configuration of another family");
    static_assert(has_half_operands<C>, "mma.m16n8k16 and ldmatrix have elements of 16 bits");
    SM80_BACKWARD_RULES(ASSERT_RULE, &C)
    static_assert(C.d_head % panel_elements == 0, "rows are made of whole panels");
    static_assert(tile_rows<C> % pass_rows<C> == 0 && step_rows<C> % pass_rows<C> == 0,
                  "blocks are made of whole passes");
    static_assert(pass_rows<C> % 8 == 0, "a thread's rows share one swizzle");
    static_assert(part_columns<C> % 16 == 0 &&
                      parts<C> * part_columns<C> * sharing_warps<C> == step_rows<C>,
                  "parts are made of whole steps of mma");
    static_assert(sharing_warps<C> == 1 || parts<C> == 1, "a part is handed over at a time");
}

#endif
