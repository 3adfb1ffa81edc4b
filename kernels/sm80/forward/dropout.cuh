/*
 * Kernels with dropout drop weights of P, after its sum has been taken; O is scaled at the end.
 */
#ifndef FLASH_KERNELS_SM80_FORWARD_DROPOUT_CUH
#define FLASH_KERNELS_SM80_FORWARD_DROPOUT_CUH

#include "common/dropout.cuh"
#include "sm80/forward/products.cuh"
#include "sm80/forward/rows.cuh"
#include "sm80/forward/tile.cuh"

/* Drops weights of a patch of 16 rows and 16 keys: of two neighbouring tiles. */
static __device__ __forceinline__ void drop_of_patch(float (&left)[4], float (&right)[4],
                                                     const philox_t &words,
                                                     const weight_bound_t &bound) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (!weight_stays(words.word[i / 2], i % 2, bound))
            left[i] = 0.0f;
        if (!weight_stays(words.word[i / 2 + 2], i % 2, bound))
            right[i] = 0.0f;
    }
}

/* A block keeps its state in static shared memory, because the main loop has no registers left. The
 * first thread writes it before the main loop, whose barriers order all reads. It is volatile, so
 * that each read is a load. */
typedef struct dropout_state {
    flash_dropout_head_t head;
    uint32_t patch_q; /* of the tile's first rows */
} dropout_state_t;

static __device__ __forceinline__ volatile dropout_state_t &dropout_state() {
    __shared__ dropout_state_t state;
    return state;
}

template <flash_config_t C>
static __device__ __forceinline__ void initialize_dropout(const flash_params_t &p,
                                                          const query_tile_t &tile) {
    if (!has_dropout<C> || threadIdx.x != 0)
        return;
    const flash_dropout_head_t head =
        flash_dropout_head(&p.dropout, p.n_heads, tile.batch_index, tile.head);
    volatile dropout_state_t &state = dropout_state();
    state.head.key_0 = head.key_0;
    state.head.key_1 = head.key_1;
    state.head.head = head.head;
    state.head.offset = head.offset;
    state.head.offset_high = head.offset_high;
    state.patch_q = (uint32_t)tile.row_begin / DROPOUT_PATCH;
}

/* Drops weights of a block of keys. */
template <flash_config_t C>
static __device__ __forceinline__ void drop_weights(score_tile<C> &p, const flash_params_t &params,
                                                    int32_t block) {
    const volatile dropout_state_t &state = dropout_state();
    const flash_dropout_head_t head = {uniform_of_warp(state.head.key_0),
                                       uniform_of_warp(state.head.key_1), state.head.head,
                                       state.head.offset, state.head.offset_high};
    const uint32_t patch_q =
        state.patch_q + threadIdx.x / SM80_WARP_THREADS * (warp_rows<C> / DROPOUT_PATCH);
    const weight_bound_t bound = weight_bound_of(params.dropout.threshold);
    const int lane = threadIdx.x % SM80_WARP_THREADS;
    const uint32_t patch_k = (uint32_t)block * (C.B_c / DROPOUT_PATCH);
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int n = 0; n < key_tiles<C>; n += 2)
            drop_of_patch(p.s[m][n], p.s[m][n + 1],
                          flash_dropout_words(&head, patch_q + m, patch_k + n / 2, lane), bound);
}

#endif
