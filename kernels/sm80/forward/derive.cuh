/*
 * These constants follow from a configuration, which is checked at compile time. Everything here is
 * a constant expression, so that kernels have no branch on a configuration field.
 */
#ifndef FLASH_KERNELS_SM80_FORWARD_DERIVE_CUH
#define FLASH_KERNELS_SM80_FORWARD_DERIVE_CUH

#include "common/bits.cuh"
#include "common/operand.cuh"
#include "sm80/sm80_kernel.h"

/* ---- mma tiles (m16n8k16) that cover a warp's rows ---- */

template <flash_config_t C> constexpr int warp_rows = C.B_r / C.n_warps;
template <flash_config_t C> constexpr int m_tiles = warp_rows<C> / 16; /* of Q, S, P, O */
template <flash_config_t C> constexpr int key_tiles = C.B_c / 8;       /* columns of S */
template <flash_config_t C> constexpr int key_steps = C.B_c / 16;      /* contraction of PV */
template <flash_config_t C> constexpr int head_tiles = C.d_head / 8;   /* columns of O */
template <flash_config_t C> constexpr int head_steps = C.d_head / 16;  /* contraction of QK^T */

/* ---- fragments in registers, in steps of the contraction: two fragments of 8 columns ---- */

SM80_CONSTANT int fragment_steps(int fragments, int whole) {
    return fragments ? fragments / 2 : whole;
}

template <flash_config_t C> constexpr bool q_resident = C.Q_mma_load_K_fragments == 0;
template <flash_config_t C>
constexpr int score_steps = fragment_steps(C.K_mma_load_K_fragments, head_steps<C>);
template <flash_config_t C>
constexpr int value_steps = fragment_steps(C.V_mma_load_K_fragments, key_steps<C>);

/* Returns the sets of fragments. With two sets, ldmatrix fills one while mma uses the other. */
SM80_CONSTANT int fragment_buffers(bool double_buffer, int steps, int whole) {
    return double_buffer && steps < whole ? 2 : 1;
}

template <flash_config_t C>
constexpr int score_buffers = fragment_buffers(C.mma_double_buffer_loads, score_steps<C>,
                                               head_steps<C>);
template <flash_config_t C>
constexpr int value_buffers = fragment_buffers(C.mma_double_buffer_loads, value_steps<C>,
                                               key_steps<C>);

/* ---- elements ---- */

/* K and V that are converted are so on their way to shared memory. */
template <flash_config_t C> constexpr int element_bytes = sm80_element_bytes(&C);
template <flash_config_t C> constexpr int chunk_elements = sm80_chunk_elements(&C);
template <flash_config_t C> constexpr int word_elements = 4 / element_bytes<C>; /* of 32 bits */
template <flash_config_t C> using element_bits = bits_of<element_bytes<C>>;

/* ---- elements of K and V in global memory ---- */

template <flash_config_t C> constexpr int kv_element_bytes = dtype_size(C.dtype);
template <flash_config_t C> using kv_element_bits = bits_of<kv_element_bytes<C>>;
template <flash_config_t C> constexpr int kv_chunk_bytes = chunk_elements<C> *kv_element_bytes<C>;

/* ---- shared memory: rows of 16-byte chunks ---- */

template <flash_config_t C> constexpr int row_bytes = C.d_head *element_bytes<C>;
template <flash_config_t C> constexpr int row_chunks = C.d_head / chunk_elements<C>;

/* The swizzle permutes the chunks within a panel. A panel is 128 bytes, all banks, if rows consist
 * of whole 128 bytes; else it is 64 bytes, and two neighbouring rows cover the banks. */
template <flash_config_t C> constexpr int panel_chunks = row_chunks<C> % 8 == 0 ? 8 : 4;
template <flash_config_t C> constexpr int row_panels = row_chunks<C> / panel_chunks<C>;

template <flash_config_t C> constexpr int q_bytes = C.B_r *row_bytes<C>;
template <flash_config_t C> constexpr int kv_bytes = C.B_c *row_bytes<C>;

/* ---- copies between global and shared memory; a pass is one chunk of a panel per thread ---- */

template <flash_config_t C> constexpr int block_threads = SM80_WARP_THREADS *C.n_warps;
template <flash_config_t C> constexpr int pass_rows = block_threads<C> / panel_chunks<C>;

/* With eager loads, this says whether V is awaited after the softmax, at the price of a third
 * barrier per block. It pays where QK^T is too short to hide the load of V. On an H200 it gains 6 %
 * at d_head 64, nothing at 128, and costs 1 % at 256. */
template <flash_config_t C> constexpr bool await_v_late = !C.eager_load_blocks || C.d_head < 128;

/* ---- masks ---- */

/* A mask may hide keys of a sequence from some or all of its queries. */
template <flash_config_t C>
constexpr bool has_mask = (C.features & (FLASH_FEATURE_CAUSAL | FLASH_FEATURE_WINDOW)) != 0;
template <flash_config_t C> constexpr bool has_window = (C.features & FLASH_FEATURE_WINDOW) != 0;
template <flash_config_t C> constexpr bool has_softcap = (C.features & FLASH_FEATURE_SOFTCAP) != 0;
template <flash_config_t C> constexpr bool has_varlen = (C.features & FLASH_FEATURE_VARLEN) != 0;
/* The kernel adds ALiBi and masks to scores, if the call has any. */
template <flash_config_t C> constexpr bool has_bias = (C.features & FLASH_FEATURE_BIAS) != 0;
template <flash_config_t C> constexpr bool has_dropout = (C.features & FLASH_FEATURE_DROPOUT) != 0;
/* K and V of every problem that the kernel serves lie in pages. */
template <flash_config_t C> constexpr bool has_pages = sm80_has_pages(&C) != 0;
/* Holes of a page table hide keys. */
template <flash_config_t C> constexpr bool hides_holes = has_pages<C> &&has_bias<C>;

/* ---- legality ---- */

template <flash_config_t C> __device__ constexpr void assert_legal() {
    static_assert(C.arch == FLASH_ARCH_SM80, "a configuration of another family");
    static_assert(has_half_operands<C>, "mma.m16n8k16 and ldmatrix have elements of 16 bits");
    static_assert(!is_latent<C>, "latent tokens are of other families");
    SM80_FWD_RULES(ASSERT_RULE, &C)
    static_assert(warp_rows<C> % 16 == 0 && C.B_r % pass_rows<C> == 0 && C.B_c % pass_rows<C> == 0,
                  "blocks are made of whole tiles and whole passes");
    static_assert(pass_rows<C> % 8 == 0, "a thread's rows share one swizzle");
}

#endif
