/*
 * Host and device code agree on this for every SM80 kernel: block and shared memory sizes, the
 * number of blocks, and the alignment that a row of the table requires. It is plain C, and constant
 * expressions in CUDA C++.
 *
 * A kernel is an `extern "C" __global__ void name(const __grid_constant__ flash_params_t params)`.
 * The grid has one dimension: sm80_grid_blocks() blocks of sm80_block_threads() threads with
 * sm80_shared_bytes() of dynamic shared memory. Without blocks there is no launch.
 * kernels/sm80/forward/tile.cuh says which block computes what.
 */
#ifndef FLASH_KERNELS_SM80_KERNEL_H
#define FLASH_KERNELS_SM80_KERNEL_H

#include "common/operand.h"
#include "common/params.h"
#include "common/rules.h"
#include "flashattn.h"

#include <stdint.h>

#ifdef __CUDACC__
#define SM80_CONSTANT static constexpr __host__ __device__ inline
#else
#define SM80_CONSTANT static inline
#endif

enum {
    SM80_WARP_THREADS = 32,
    SM80_CHUNK_BYTES = 16, /* the widest copy of a thread */
    SM80_FRAGMENT = 8,     /* columns along the contraction that one fragment covers */
    SM80_MMA_ROWS = 16,
    /* Of compute capability 8.0; newer data-centre chips have more. */
    SM80_SHARED_BYTES_OF_SM = 164 * 1024,
    SM80_SHARED_BYTES_RESERVED = 1024, /* per block, by the system */
    SM80_STATIC_SHARED_BYTES = 128     /* per block, at most: forward/block_state.cuh */
};

/* Returns the bytes of an element in shared memory, of Q also in global memory. */
SM80_CONSTANT int32_t sm80_element_bytes(const flash_config_t *c) {
    return dtype_size(flash_operand_dtype(c));
}

SM80_CONSTANT int32_t sm80_chunk_elements(const flash_config_t *c) {
    return SM80_CHUNK_BYTES / sm80_element_bytes(c);
}

SM80_CONSTANT int32_t sm80_block_threads(const flash_config_t *c) {
    return SM80_WARP_THREADS * c->n_warps;
}

/* Dynamic shared memory holds Q (later O), K and V, one block of each. */
SM80_CONSTANT int32_t sm80_shared_bytes(const flash_config_t *c) {
    return (c->B_r + 2 * c->B_c) * c->d_head * sm80_element_bytes(c);
}

/* Counts the blocks that share a multiprocessor. The compiler assigns registers accordingly. */
SM80_CONSTANT int32_t sm80_blocks_per_sm(const flash_config_t *c) {
    return c->n_warps == 8 ||
                   2 * (sm80_shared_bytes(c) + SM80_SHARED_BYTES_RESERVED) > SM80_SHARED_BYTES_OF_SM
               ? 1
               : 2;
}

SM80_CONSTANT int32_t sm80_has_pages(const flash_config_t *c) {
    return (c->features & FLASH_FEATURE_PAGED) != 0;
}

/* Counts the tiles of B_r queries of each sequence and head. */
SM80_CONSTANT int64_t sm80_tiles(const flash_config_t *c, int32_t seqlen_q) {
    return ((int64_t)seqlen_q + c->B_r - 1) / c->B_r;
}

SM80_CONSTANT int64_t sm80_grid_blocks(const flash_config_t *c, const flash_params_t *p) {
    return sm80_tiles(c, p->seqlen_q) * p->n_heads * p->batch;
}

/* Says whether every row of a tensor, and its d_head elements, consist of whole, aligned chunks. */
static inline int sm80_chunks_aligned(const flash_config_t *c, const void *data,
                                      const flash_strides_t *stride, int32_t d_head) {
    const uint64_t elements = (uint64_t)stride->batch | (uint64_t)stride->seq |
                              (uint64_t)stride->head | (uint64_t)(uint32_t)d_head;
    const uint64_t of_chunk = (uint64_t)sm80_chunk_elements(c);
    return (uintptr_t)data % SM80_CHUNK_BYTES == 0 && elements % of_chunk == 0;
}

/*
 * Kernels with async_copy copy whole chunks, and need aligned chunks in Q, K and V. The others
 * choose between chunks and single elements, and serve every alignment. O may lie anywhere.
 */
static inline int sm80_serves_alignment(const flash_config_t *c, const flash_params_t *p) {
    return !c->async_copy || (sm80_chunks_aligned(c, p->q, &p->q_stride, p->d_head) &&
                              sm80_chunks_aligned(c, p->k, &p->k_stride, p->d_head) &&
                              sm80_chunks_aligned(c, p->v, &p->v_stride, p->d_head_v));
}

/* ---- Rules among fields (common/rules.h) ---- */

SM80_CONSTANT int32_t sm80_most_fragments(const flash_config_t *c, int32_t contraction) {
    return contraction / SM80_FRAGMENT / (c->mma_double_buffer_loads ? 2 : 1);
}

/* The fragments that are held at a time are 0, or a power of two from 2 to all of the contraction,
 * or to half of it when the next ones are loaded meanwhile. */
#define SM80_FRAGMENT_RULES(X, c, field, axis)                                                     \
    X((c)->field >= 0 && (c)->field != 1 && ((c)->field & ((c)->field - 1)) == 0,                  \
      "%s is %d: not 0 or a power of two from 2 on", #field, (c)->field)                           \
    X((c)->field <= sm80_most_fragments(c, (c)->axis), "%s is %d: at most %d with %s %d%s",        \
      #field, (c)->field, sm80_most_fragments(c, (c)->axis), #axis, (c)->axis,                     \
      (c)->mma_double_buffer_loads ? " and double buffering" : "")

/* K and V are converted in registers, which asynchronous copies bypass. */
#define SM80_FWD_RULES(X, c)                                                                       \
    X((c)->B_r % (SM80_MMA_ROWS * (c)->n_warps) == 0,                                              \
      "n_warps is %d: B_r %d does not divide into rows of %d for each", (c)->n_warps, (c)->B_r,    \
      SM80_MMA_ROWS)                                                                               \
    SM80_FRAGMENT_RULES(X, c, Q_mma_load_K_fragments, d_head)                                      \
    SM80_FRAGMENT_RULES(X, c, K_mma_load_K_fragments, d_head)                                      \
    SM80_FRAGMENT_RULES(X, c, V_mma_load_K_fragments, B_c)                                         \
    X((c)->Q_mma_load_K_fragments == 0 ||                                                          \
          (c)->Q_mma_load_K_fragments == (c)->K_mma_load_K_fragments,                              \
      "Q_mma_load_K_fragments is %d: neither 0 nor K_mma_load_K_fragments, %d",                    \
      (c)->Q_mma_load_K_fragments, (c)->K_mma_load_K_fragments)                                    \
    X(!sm80_has_pages(c) || ((c)->features & FLASH_FEATURE_VARLEN) != 0,                           \
      "features has paged: it needs varlen, which is not there")                                   \
    X(((c)->features & FLASH_FEATURE_BIAS) == 0 || (c)->optimized_softmax,                         \
      "features has bias: it needs optimized_softmax, which is 0")                                 \
    X(((c)->features & FLASH_FEATURE_DROPOUT) == 0 || !sm80_has_pages(c),                          \
      "features has dropout and paged: K and V in pages have no dropout")                          \
    X(((c)->features & FLASH_FEATURE_DROPOUT) == 0 || !flash_converts(c),                          \
      "features has dropout: with this dtype it has none")                                         \
    X(!flash_converts(c) || !(c)->async_copy, "async_copy is 1: with this dtype it is 0")

#endif
