/*
 * This file finds the box of a tensor map that holds rows of a tile (ptx/tma.cuh).
 */
#ifndef FLASH_KERNELS_SM90_LOAD_BOX_CUH
#define FLASH_KERNELS_SM90_LOAD_BOX_CUH

#include "common/kv.h"
#include "sm90/ptx/tma.cuh"
#include "sm90/tile.cuh"

/* Returns the box from row `row` on of a sequence of `length` tokens, of which the first is token
 * `begin` of the tensor. */
static __device__ __forceinline__ tma_box_t ragged_box(int32_t row, int32_t head, int32_t begin,
                                                       int32_t length) {
    return tma_box_t{0, SM90_RAGGED_END - length + row, head, begin + length};
}

/* Returns a box of Q or O, with that tensor's entry_tokens. */
template <flash_config_t C>
static __device__ __forceinline__ tma_box_t query_box(const tile_of<C> &tile, int32_t row,
                                                      int32_t entry_tokens) {
    if constexpr (has_varlen<C>)
        return ragged_box(row, tile.head, tile.q_begin + tile.batch_index * entry_tokens,
                          tile.len_q);
    else
        return tma_box_t{0, row, tile.head, tile.batch_index};
}

/* Returns the box that begins with the key of a run of K or V, with that tensor's entry_tokens. It
 * may have more rows than are left of the run: TMA stops where the run ends. */
template <flash_config_t C>
static __device__ __forceinline__ tma_box_t run_box(const flash_kv_run_t &run, int32_t head_kv,
                                                    int32_t entry_tokens) {
    const int32_t entry = (int32_t)run.entry, begin = (int32_t)run.begin, at = (int32_t)run.at;
    if constexpr (has_varlen<C>)
        return ragged_box(at, head_kv, begin + entry * entry_tokens, run.length);
    else
        return tma_box_t{0, begin + at, head_kv, entry};
}

/* Returns the box of K or V that begins with a key of the tile's sequence. */
template <flash_config_t C>
static __device__ __forceinline__ tma_box_t key_box(const flash_params_t &p, const tile_of<C> &tile,
                                                    int32_t key, int32_t entry_tokens) {
    const flash_sequence_t sequence = sequence_of<C>(p, tile);
    const flash_kv_run_t run = flash_kv_run(&sequence, tile.batch_index, key);
    return run_box<C>(run, tile.head / p.group, entry_tokens);
}

#endif
