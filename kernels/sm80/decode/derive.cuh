/*
 * These constants follow from the configuration of a decode kernel, which is checked at compile
 * time.
 *
 * The products are transposed: S^T = K Q^T and O^T = V^T P^T. So keys, and then columns of V, are
 * the 16 rows of an mma, and rows of Q its 8 columns, and a warp needs no other warp.
 */
#ifndef FLASH_KERNELS_SM80_DECODE_DERIVE_CUH
#define FLASH_KERNELS_SM80_DECODE_DERIVE_CUH

#include "common/operand.cuh"
#include "sm80/decode_kernel.h"

constexpr int line_chunks = int{DECODE_LINE_BYTES} / int{DECODE_CHUNK_BYTES};

/* ---- mma tiles (m16n8k16) ---- */

template <flash_config_t C> constexpr int row_groups = C.B_r / 8;     /* of Q, columns of an mma */
template <flash_config_t C> constexpr int key_tiles = C.B_c / 16;     /* rows of S^T of a step */
template <flash_config_t C> constexpr int head_tiles = C.d_head / 16; /* contraction; rows of O^T */

/* ---- elements of K and V; Q, P and the operands of mma have 16 bits ---- */

template <flash_config_t C> constexpr int element_bytes = dtype_size(C.dtype);
constexpr int query_bytes = 2;

/* ---- shared memory: lines of 128 bytes, of 16-byte chunks, swizzled. A longer row has a line in
 * each panel, and shorter rows share a line. ---- */

template <flash_config_t C> constexpr int chunk_elements = DECODE_CHUNK_BYTES / element_bytes<C>;
template <flash_config_t C> constexpr int row_chunks = C.d_head / chunk_elements<C>;
template <flash_config_t C>
constexpr int line_rows = row_chunks<C> < line_chunks ? line_chunks / row_chunks<C> : 1;
template <flash_config_t C> constexpr int panel_bytes = C.B_c / line_rows<C> *DECODE_LINE_BYTES;

/* An ldmatrix reads two chunks of 16 keys: load_tiles head tiles, of which a slot has
 * head_loads. */
template <flash_config_t C>
constexpr int load_tiles = 2 * DECODE_CHUNK_BYTES / (16 * element_bytes<C>);
template <flash_config_t C> constexpr int head_loads = head_tiles<C> / load_tiles<C>;
template <flash_config_t C> constexpr int slot_bytes = decode_slot_bytes(&C);
template <flash_config_t C> constexpr int warp_ring_bytes = C.n_stages * 2 * slot_bytes<C>;

/* Rows that one copy instruction of a warp covers, and the copy instructions per slot. */
template <flash_config_t C> constexpr int copy_rows = DECODE_WARP_THREADS / row_chunks<C>;
template <flash_config_t C> constexpr int copies = C.B_c / copy_rows<C>;

/* A warp's results lie over its ring: fp32 rows, padded against bank conflicts, and weights. */
template <flash_config_t C> constexpr int result_pitch = C.d_head + 4;
template <flash_config_t C>
constexpr int result_bytes = C.B_r *(result_pitch<C> * 4 + (int)sizeof(decode_weight_t));

/* ---- features: every kernel has causal masks, windows, softcap and lengths ---- */

template <flash_config_t C> constexpr bool has_pages = (C.features & FLASH_FEATURE_PAGED) != 0;
template <flash_config_t C> constexpr bool has_bias = (C.features & FLASH_FEATURE_BIAS) != 0;
/* Holes of a page table hide keys. */
template <flash_config_t C> constexpr bool hides_holes = has_pages<C> &&has_bias<C>;

template <flash_config_t C> __device__ constexpr void assert_legal() {
    static_assert(C.arch == FLASH_ARCH_SM80_DECODE, "a configuration of another family");
    static_assert(has_half_operands<C>, "mma.m16n8k16 and ldmatrix have elements of 16 bits");
    static_assert(!is_latent<C>, "latent tokens are of other families");
    SM80_DECODE_FWD_RULES(ASSERT_RULE, &C)
    static_assert(C.B_c <= 32, "a lane for each key");
    static_assert(DECODE_UNIT_KEYS % C.B_c == 0, "a piece is made of whole steps");
    static_assert(result_bytes<C> <= warp_ring_bytes<C>, "results lie over the ring");
}

#endif
