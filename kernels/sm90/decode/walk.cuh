/*
 * A walk goes over the keys of a piece in blocks of B_c: first those that every row of the tile
 * sees whole, then those that a mask or an end cuts. With a running maximum any order will do, and
 * so each kind of block has a loop of its own.
 */
#ifndef FLASH_KERNELS_SM90_DECODE_WALK_CUH
#define FLASH_KERNELS_SM90_DECODE_WALK_CUH

#include "common/decode/rows.cuh"
#include "sm90/decode/derive.cuh"
#include "sm90/fragments.cuh"

typedef struct key_walk {
    int32_t begin; /* first key; a multiple of DECODE_UNIT_KEYS */
    int32_t end;   /* past the last key of the piece that some row sees */
    int32_t blocks;
    int32_t whole_begin; /* blocks that every row sees whole */
    int32_t whole_end;
} key_walk_t;

/* Counts the whole blocks in keys [from, to); not negative. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t blocks_to(int32_t from, int32_t to) {
    return max(to - from, 0) / C.B_c;
}

template <flash_config_t C>
static __device__ __forceinline__ int32_t blocks_to_or_over(int32_t from, int32_t to) {
    const int32_t keys = max(to - from, 0);
    return keys / C.B_c + (keys % C.B_c != 0);
}

/* Finds the walk. Both ends of what a row sees move right from row to row. */
template <flash_config_t C>
static __device__ __forceinline__ key_walk_t find_walk(const decode_params_t &params,
                                                       const decode_block_t &block) {
    const flash_params_t &p = params.attention;
    const int32_t first_query = find_row(params, block.row_begin).query;
    const int32_t last_query = find_row(params, block.row_begin + block.rows - 1).query;
    const flash_range_t first = flash_visible_keys(&p, &block.sequence, first_query);
    const flash_range_t last = flash_visible_keys(&p, &block.sequence, last_query);
    key_walk_t walk;
    walk.begin = max(block.key_begin, first.begin / DECODE_UNIT_KEYS * DECODE_UNIT_KEYS);
    walk.end = min(block.key_end, last.end);
    walk.blocks = blocks_to_or_over<C>(walk.begin, walk.end);
    walk.whole_begin = min(blocks_to_or_over<C>(walk.begin, last.begin), walk.blocks);
    walk.whole_end = max(blocks_to<C>(walk.begin, min(walk.end, first.end)), walk.whole_begin);
    return {uniform(walk.begin), uniform(walk.end), uniform(walk.blocks), uniform(walk.whole_begin),
            uniform(walk.whole_end)};
}

static __device__ __forceinline__ int32_t whole_blocks(const key_walk_t &walk) {
    return walk.whole_end - walk.whole_begin;
}

/* Returns the first key of the n-th block of the walk. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t nth_key(const key_walk_t &walk, int32_t n) {
    const int32_t cut = n - whole_blocks(walk);
    const int32_t of_cut = cut < walk.whole_begin ? cut : n;
    return walk.begin + (cut < 0 ? walk.whole_begin + n : of_cut) * C.B_c;
}

/* ---- What rows see ---- */

/* These are the keys of the walk that the thread's two rows see. */
typedef struct row_keys {
    flash_range_t of[2];
} row_keys_t;

/* first: the first of the thread's two rows; the other is 8 below. */
static __device__ __forceinline__ row_keys_t find_row_keys(const decode_params_t &params,
                                                           const decode_block_t &block,
                                                           const key_walk_t &walk, int32_t first) {
    row_keys_t keys;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int32_t row = min(first + 8 * half, block.rows - 1);
        const int32_t query = find_row(params, block.row_begin + row).query;
        keys.of[half] = flash_visible_keys(&params.attention, &block.sequence, query);
        keys.of[half].end = min(keys.of[half].end, walk.end);
    }
    return keys;
}

static __device__ __forceinline__ bool sees(const row_keys_t &keys, int half, int32_t key) {
    return key >= keys.of[half].begin && key < keys.of[half].end;
}

#endif
