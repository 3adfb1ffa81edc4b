/*
 * Which box of a tensor map holds rows of a tile: see ptx/tma.cuh.
 */
#ifndef FLASH_KERNELS_SM90_LOAD_BOX_CUH
#define FLASH_KERNELS_SM90_LOAD_BOX_CUH

#include "sm90/ptx/tma.cuh"
#include "sm90/tile.cuh"

/* The box from row `row` on of a sequence of `length` tokens, of which the first is token `begin`
 * of the tensor. */
static __device__ __forceinline__ tma_box_t ragged_box(int32_t row, int32_t head, int32_t begin,
                                                       int32_t length) {
    return tma_box_t{0, SM90_RAGGED_END - length + row, head, begin + length};
}

/* A box of Q or O, with that tensor's entry_tokens. */
template <flash_config_t C>
static __device__ __forceinline__ tma_box_t query_box(const tile_of<C> &tile, int32_t row,
                                                      int32_t entry_tokens) {
    if constexpr (has_varlen<C>)
        return ragged_box(row, tile.head, tile.q_begin + tile.batch_index * entry_tokens,
                          tile.len_q);
    else
        return tma_box_t{0, row, tile.head, tile.batch_index};
}

/* A box of K or V, with that tensor's entry_tokens. */
template <flash_config_t C>
static __device__ __forceinline__ tma_box_t key_box(const flash_params_t &p, const tile_of<C> &tile,
                                                    int32_t row, int32_t entry_tokens) {
    const int32_t head = tile.head / p.group;
    if constexpr (has_varlen<C>)
        return ragged_box(row, head, tile.k_begin + tile.batch_index * entry_tokens, tile.len_k);
    else
        return tma_box_t{0, row, head, tile.batch_index};
}

#endif
