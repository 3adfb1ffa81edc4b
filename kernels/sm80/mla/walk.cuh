/*
 * A walk goes over the keys of a piece that some row of the block sees, in steps of B_c keys, which
 * begin at multiples of B_c.
 */
#ifndef FLASH_KERNELS_SM80_MLA_WALK_CUH
#define FLASH_KERNELS_SM80_MLA_WALK_CUH

#include "common/decode/rows.cuh"
#include "sm80/mla/derive.cuh"

typedef struct key_walk {
    int32_t begin;       /* first key */
    int32_t end;         /* past the last key; no less than begin */
    flash_range_t whole; /* keys that every row sees */
} key_walk_t;

/* Finds the walk. Both ends of what a row sees move right from row to row. */
template <flash_config_t C>
static __device__ __forceinline__ key_walk_t find_walk(const sm80_decode_params_t &params,
                                                       const decode_block_t &block) {
    const flash_params_t &p = params.attention;
    const int32_t first_query = find_row(params, block.row_begin).query;
    const int32_t last_query = find_row(params, block.row_begin + block.rows - 1).query;
    const flash_range_t first = flash_visible_keys(&p, &block.sequence, first_query);
    const flash_range_t last = flash_visible_keys(&p, &block.sequence, last_query);
    key_walk_t walk;
    walk.begin = max(block.key_begin, first.begin / C.B_c * C.B_c);
    walk.end = max(min(block.key_end, last.end), walk.begin);
    walk.whole = {last.begin, min(first.end, walk.end)};
    return walk;
}

/* Says whether some row does not see all keys of the step that begins with this one. */
template <flash_config_t C>
static __device__ __forceinline__ bool is_cut(const key_walk_t &walk, int32_t step_key) {
    return step_key < walk.whole.begin || step_key + C.B_c > walk.whole.end;
}

static __device__ __forceinline__ bool sees(const flash_range_t &keys, int32_t key) {
    return key >= keys.begin && key < keys.end;
}

/* Leaves what rows see, their sinks and their biases in shared memory. */
template <flash_config_t C>
static __device__ __forceinline__ void
stage_rows(mla_exchange<C> &shared, const sm80_decode_params_t &params, const decode_block_t &block,
           const key_walk_t &walk) {
    static_assert(C.B_r <= decode_block_threads(&C), "one each");
    const int row = (int)threadIdx.x;
    if (row >= C.B_r)
        return;
    const head_row_t at = find_row(params, block.row_begin + min(row, block.rows - 1));
    flash_range_t keys = flash_visible_keys(&params.attention, &block.sequence, at.query);
    keys.end = min(keys.end, walk.end);
    shared.keys[row] = keys;
    shared.sink[row] = load_sink(params.attention, block.first_head_kv, at);
    if constexpr (has_bias<C>) {
        const flash_params_t &p = params.attention;
        const int64_t head = (int64_t)block.first_head_kv * p.group + at.head;
        shared.biases.of[row] =
            flash_bias_row(&p, &block.sequence, block.piece.batch_index, head, at.query);
    }
}

#endif
