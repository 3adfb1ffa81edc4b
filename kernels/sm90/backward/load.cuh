/*
 * The producer of a backward kernel: one warp loads tiles by TMA. Where queries pass by, another
 * one loads two numbers of each row, D and the logarithm of its sum: rows of a ragged batch have no
 * alignment that a bulk copy could use.
 */
#ifndef FLASH_KERNELS_SM90_BACKWARD_LOAD_CUH
#define FLASH_KERNELS_SM90_BACKWARD_LOAD_CUH

#include "common/ptx/async_copy.cuh"
#include "common/ptx/opaque.cuh"
#include "sm90/backward/passes.cuh"

/* Loads `rows` rows of a tensor from `box` on, panel by panel. */
template <flash_config_t C>
static __device__ __forceinline__ void load_rows(const sm90_tensor_map_t *map, tma_box_t box,
                                                 uint32_t shared, int rows, int columns,
                                                 uint32_t barrier, uint64_t hint) {
    const int panels = columns / panel_elements<C>;
    mbarrier_arrive_expect(barrier, rows * panels * SM90_PANEL_BYTES);
    for (int panel = 0; panel < panels; ++panel, box.column += panel_elements<C>)
        tma_load<has_varlen<C>>(shared + panel * rows * SM90_PANEL_BYTES, map, box, barrier, hint);
}

/* Places of a tile's rows in Q and K, or in dO and V. */
template <flash_config_t C>
static __device__ __forceinline__ tma_box_t query_rows(const sm90_backward_params_t &params,
                                                       const gradient_tile_t &tile, int32_t head,
                                                       int32_t row, bool is_d_o) {
    return tensor_box<C>(tile, head, tile.first_query + row, tile.sequence.q_begin,
                         tile.sequence.len_q,
                         is_d_o ? params.entry_tokens.o : params.entry_tokens.q);
}

template <flash_config_t C>
static __device__ __forceinline__ tma_box_t key_rows(const sm90_backward_params_t &params,
                                                     const gradient_tile_t &tile, int32_t head,
                                                     int32_t row, bool is_v) {
    return tensor_box<C>(tile, head, row, tile.sequence.k_begin, tile.sequence.len_k,
                         is_v ? params.entry_tokens.v : params.entry_tokens.k);
}

/* A producer counts the blocks that it has loaded, in one register: it has few. */
template <flash_config_t C> static __device__ __forceinline__ ring_t ring_after(uint32_t loaded) {
    return {(int32_t)(loaded % C.n_stages), loaded / C.n_stages & 1};
}

/* Loads the tiles that stay. */
template <flash_config_t C>
static __device__ __forceinline__ void load_still(const sm90_backward_params_t &params,
                                                  const gradient_tile_t &tile) {
    gradient_state_t &state = gradient_state<C>();
    const sm90_tensor_map_t *const map = writes_dq<C> ? &params.q : &params.k;
    const sm90_tensor_map_t *const map_v = writes_dq<C> ? &params.d_o : &params.v;
    const tma_box_t box = writes_dq<C> ? query_rows<C>(params, tile, tile.head, tile.begin, false)
                                       : key_rows<C>(params, tile, tile.head, tile.begin, false);
    const tma_box_t box_v = writes_dq<C> ? query_rows<C>(params, tile, tile.head, tile.begin, true)
                                         : key_rows<C>(params, tile, tile.head, tile.begin, true);
    load_rows<C>(map, box, still_tile<C>(), still_rows<C>, C.d_head,
                 shared_address(&state.still_full), l2_evict_first);
    load_rows<C>(map_v, box_v, still_v_tile<C>(), still_rows<C>, d_head_v<C>,
                 shared_address(&state.still_v_full), l2_evict_first);
}

/* Loads a block of rows that pass by, of a query head or K/V head. */
template <flash_config_t C>
static __device__ __forceinline__ void load_step(const sm90_backward_params_t &params,
                                                 const gradient_tile_t &tile, int32_t head,
                                                 int32_t block, uint32_t loaded) {
    gradient_state_t &state = gradient_state<C>();
    const ring_t ring = ring_after<C>(loaded);
    const int stage = ring.stage;
    const int32_t row = block * step_rows<C>;
    const sm90_tensor_map_t *const map = writes_dq<C> ? &params.k : &params.q;
    const sm90_tensor_map_t *const map_v = writes_dq<C> ? &params.v : &params.d_o;
    wait_full(state.empty[stage], ring.parity ^ 1);
    load_rows<C>(map,
                 writes_dq<C> ? key_rows<C>(params, tile, head, row, false)
                              : query_rows<C>(params, tile, head, row, false),
                 moving_tile<C>(stage), step_rows<C>, C.d_head, shared_address(&state.full[stage]),
                 l2_evict_last);
    wait_full(state.v_empty[stage], ring.parity ^ 1);
    load_rows<C>(map_v,
                 writes_dq<C> ? key_rows<C>(params, tile, head, row, true)
                              : query_rows<C>(params, tile, head, row, true),
                 moving_v_tile<C>(stage), step_rows<C>, d_head_v<C>,
                 shared_address(&state.v_full[stage]), l2_evict_last);
}

/* Counts the query heads whose rows pass by a tile. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t passing_heads(const flash_params_t &p) {
    return writes_dq<C> ? 1 : p.group;
}

/* Returns the i-th head whose rows pass by: a query head, or the K/V head of the tile's. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t passing_head(const flash_params_t &p,
                                                       const gradient_tile_t &tile, int32_t i) {
    return writes_dq<C> ? tile.head / p.group : tile.head * p.group + i;
}

/* Loads everything, in one thread: keys pass by from the last to the first, queries from the first
 * to the last. */
template <flash_config_t C>
static __device__ __forceinline__ void load_tiles(const sm90_backward_params_t &params) {
    const flash_params_t &p = params.problem;
    const gradient_tile_t tile = find_gradient_tile<C>(params);
    const gradient_steps_t steps = find_steps<C>(params.problem, tile, 0, still_rows<C>);
    const int32_t n = has_rows<C>(tile) ? (steps.end - steps.begin) * passing_heads<C>(p) : 0;
    const int32_t first = writes_dq<C> ? steps.end - 1 : steps.begin;
    if (n > 0)
        load_still<C>(params, tile);
    uint32_t loaded = 0;
#pragma unroll 1
    do {
        int32_t head = passing_head<C>(p, tile, 0), block = first;
#pragma unroll 1
        for (int32_t i = 0; i < n; ++i, ++loaded) {
            load_step<C>(params, tile, head, block, loaded);
            block += writes_dq<C> ? -1 : 1;
            if (!writes_dq<C> && block == steps.end) {
                block = first;
                ++head;
            }
        }
    } while (begins_again<C>(p, n, loaded));
}

/* Loads the numbers of a block of rows, of which `rows` exist, from index `at` on. */
template <flash_config_t C>
static __device__ __forceinline__ void copy_row_numbers(const flash_gradients_t &g, int64_t at,
                                                        int32_t rows, int stage) {
    gradient_state_t &state = gradient_state<C>();
#pragma unroll
    for (int begin = 0; begin < step_rows<C>; begin += warp_threads) {
        const int row = begin + (int)opaque(lane_index());
        const bool exists = row < rows;
        if (step_rows<C> % warp_threads == 0 || row < step_rows<C>) {
            async_copy_word_or_zero(shared_address(&state.log_sum[stage][row]),
                                    g.row_log_sum + (exists ? at + row : 0), exists);
            async_copy_word_or_zero(shared_address(&state.d[stage][row]),
                                    g.row_d + (exists ? at + row : 0), exists);
        }
    }
}

/* Loads the numbers of rows that pass by; those of rows beyond the end become 0. There Q and dO are
 * 0, too, and add nothing to any gradient. All lanes of a warp call this. */
template <flash_config_t C>
static __device__ __forceinline__ void load_row_numbers(const sm90_backward_params_t &params) {
    const flash_params_t &p = params.problem;
    const flash_gradients_t &g = params.gradients;
    gradient_state_t &state = gradient_state<C>();
    const gradient_tile_t tile = find_gradient_tile<C>(params);
    const gradient_steps_t steps = find_steps<C>(p, tile, 0, still_rows<C>);
    const int32_t n = has_rows<C>(tile) ? (steps.end - steps.begin) * p.group : 0;
    const int32_t begin = steps.begin * step_rows<C>;
    const int32_t rows = tile.sequence.len_q - tile.first_query - begin;
    int64_t from = begin + flash_row_index(&p, &g, &tile.sequence, tile.batch_index,
                                           tile.head * p.group, tile.first_query);
    const int32_t span = (steps.end - steps.begin) * step_rows<C>; /* that pass by, of each head */
    int32_t left = rows;                                           /* of the head */
    uint32_t loaded = 0;
#pragma unroll 1
    do {
#pragma unroll 1
        for (int32_t i = 0; i < n; ++i, ++loaded) {
            const ring_t ring = ring_after<C>(loaded);
            wait_full(state.empty[ring.stage], ring.parity ^ 1);
            copy_row_numbers<C>(g, from, left, ring.stage);
            async_copy_arrive(shared_address(&state.full[ring.stage]));
            __syncwarp();
            release(state.full[ring.stage]);
            from += step_rows<C>;
            left -= step_rows<C>;
            if (left == rows - span) {
                from += g.n_rows - span;
                left = rows;
            }
        }
        from -= p.group * g.n_rows;
    } while (begins_again<C>(p, n, loaded));
}

#endif
