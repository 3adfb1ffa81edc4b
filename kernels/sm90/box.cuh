/*
 * Where a tile's rows are in the tensor maps: see ptx/tma.cuh.
 */
#ifndef FLASH_KERNELS_SM90_BOX_CUH
#define FLASH_KERNELS_SM90_BOX_CUH

#include "sm90/ptx/tma.cuh"
#include "sm90/tile.cuh"

/* Row `row` of a sequence of `length` tokens from token `begin` on. */
static __device__ __forceinline__ tma_box_t ragged_box(int32_t row, int32_t head, int32_t begin,
                                                       int32_t length) {
    return tma_box_t{0, SM90_RAGGED_END - length + row, head, begin + length};
}

/* Of Q or O, with that tensor's entry_tokens. */
template <flash_config_t C>
static __device__ __forceinline__ tma_box_t query_box(const tile_of<C> &t, int32_t row,
                                                      int32_t entry_tokens) {
    if constexpr (has_varlen<C>)
        return ragged_box(row, t.head, t.q_begin + t.batch_index * entry_tokens, t.len_q);
    else
        return tma_box_t{0, row, t.head, t.batch_index};
}

/* Of K or V. */
template <flash_config_t C>
static __device__ __forceinline__ tma_box_t key_box(const flash_params_t &p, const tile_of<C> &t,
                                                    int32_t row, int32_t entry_tokens) {
    const int32_t head = t.head / p.group;
    if constexpr (has_varlen<C>)
        return ragged_box(row, head, t.k_begin + t.batch_index * entry_tokens, t.len_k);
    else
        return tma_box_t{0, row, head, t.batch_index};
}

#endif
