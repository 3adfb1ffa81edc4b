/*
 * The SM90 kernel that computes dQ of kept dS. A tile is 128 or 256 queries of a head, 64 or 128
 * for each consumer. Blocks of keys pass by, from the last to the first, with dS of all queries of
 * the tile:
 *
 *     dQ -= (-dS^T)^T K
 *
 * Both operands come from shared memory as they lie in memory (kept_ds.cuh), and the time goes into
 * reading dS.
 */
#ifndef FLASH_KERNELS_SM90_BACKWARD_DQ_OF_DS_CUH
#define FLASH_KERNELS_SM90_BACKWARD_DQ_OF_DS_CUH

#include "sm90/backward/kept_ds.cuh"
#include "sm90/backward/load.cuh"
#include "sm90/backward/masks.cuh"
#include "sm90/backward/passes.cuh"
#include "sm90/backward/products.cuh"
#include "sm90/backward/sanitise.cuh"
#include "sm90/backward/store.cuh"

/* A stage has dS of each 128 queries, two panels, and K. */
constexpr int ds_stage_part = 2 * ds_panel_bytes;
template <flash_config_t C> constexpr int ds_parts = C.B_r / SM90_DS_ROWS;

template <flash_config_t C> static __device__ __forceinline__ uint32_t ds_tile(int stage) {
    return shared_address(shared_memory) + stage * sm90_ds_stage_bytes(&C);
}

template <flash_config_t C> static __device__ __forceinline__ uint32_t ds_k_tile(int stage) {
    return ds_tile<C>(stage) + ds_parts<C> * ds_stage_part;
}

/* ---- The producer ---- */

/* Counts the blocks of keys that queries see from number `first` of the tile on. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t count_seen_blocks(const flash_params_t &p,
                                                            const gradient_tile_t &tile, int first,
                                                            int rows) {
    return tile.begin + first < tile.sequence.len_q ? find_steps<C>(p, tile, first, rows).end : 0;
}

/* This is where dS of 128 queries lies, and how many blocks of keys they see. */
typedef struct ds_part {
    const char *first; /* column 0 */
    int32_t step;      /* bytes from column to column */
    int32_t end;
} ds_part_t;

/* Loads a block. */
template <flash_config_t C>
static __device__ __forceinline__ void
load_ds_step(const sm90_backward_params_t &params, const gradient_tile_t &tile,
             const ds_part_t (&parts)[ds_parts<C>], int32_t block, uint32_t loaded) {
    gradient_state_t &state = gradient_state<C>();
    const ring_t ring = ring_after<C>(loaded);
    const int stage = ring.stage;
    const uint32_t barrier = shared_address(&state.full[stage]);
    uint32_t bytes = moving_bytes<C>;
    wait_full(state.empty[stage], ring.parity ^ 1);
#pragma unroll
    for (int i = 0; i < ds_parts<C>; ++i)
        bytes += block < parts[i].end ? ds_stage_part : 0;
    mbarrier_arrive_expect(barrier, bytes);
#pragma unroll
    for (int i = 0; i < ds_parts<C>; ++i)
        if (block < parts[i].end)
            bulk_load(ds_tile<C>(stage) + i * ds_stage_part,
                      parts[i].first + (int64_t)(block / 2) * parts[i].step +
                          block % 2 * ds_stage_part,
                      ds_stage_part, barrier, l2_evict_first);
    tma_box_t box =
        key_rows<C>(params, tile, tile.head / params.problem.group, block * C.B_c, false);
    for (int panel = 0; panel < C.d_head / panel_elements<C>;
         ++panel, box.column += panel_elements<C>)
        tma_load<has_varlen<C>>(ds_k_tile<C>(stage) + panel * moving_panel<C>, &params.k, box,
                                barrier, l2_evict_last);
}

/* Loads everything, in one thread. */
template <flash_config_t C>
static __device__ __forceinline__ void load_ds_tiles(const sm90_backward_params_t &params) {
    const flash_params_t &p = params.problem;
    const gradient_tile_t tile = find_gradient_tile<C>(params);
    const int32_t n = has_rows<C>(tile) ? find_steps<C>(p, tile, 0, C.B_r).end : 0;
    const uint32_t first = first_ds_place(params, tile, tile.head);
    ds_part_t parts[ds_parts<C>];
#pragma unroll
    for (int i = 0; i < ds_parts<C>; ++i) {
        const ds_row_t row =
            find_ds_row<C>(params.gradients.ds, first, tile.begin / SM90_DS_ROWS + i);
        parts[i].first =
            (const char *)params.gradients.ds.data + (uint64_t)row.place * SM90_DS_TILE_BYTES;
        parts[i].step = row.goes_back ? -SM90_DS_TILE_BYTES : SM90_DS_TILE_BYTES;
        parts[i].end = count_seen_blocks<C>(p, tile, i * SM90_DS_ROWS, SM90_DS_ROWS);
    }
    uint32_t loaded = 0;
#pragma unroll 1
    do {
#pragma unroll 1
        for (int32_t i = 0; i < n; ++i, ++loaded)
            load_ds_step<C>(params, tile, parts, n - 1 - i, loaded);
    } while (begins_again<C>(p, n, loaded));
}

/* ---- The consumers ---- */

/* A consumer has so many panels of dS, each of 64 queries. */
template <flash_config_t C> constexpr int ds_panels = sm90_ds_panels(&C);

/* This is what a consumer carries from block to block. */
template <flash_config_t C> struct ds_consumer {
    float dq[ds_panels<C>][C.d_head / 2]; /* -dQ / scale */
    ring_t ring;
    int number;
    seen_t seen[ds_panels<C>]; /* in the second pass */
};

/* Returns the number in the tile of the first query of one of the consumer's panels. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t first_of_panel(const ds_consumer<C> &consumer,
                                                         int panel) {
    return (consumer.number * ds_panels<C> + panel) * ds_panel_rows;
}

/* Multiplies dS of panels from `first` up to `end`. */
template <flash_config_t C>
static __device__ __forceinline__ void issue_ds_product(ds_consumer<C> &consumer, int stage,
                                                        int first = 0, int end = ds_panels<C>) {
    constexpr int step_bytes_down = 16 * SM90_PANEL_BYTES; /* sixteen keys, of both */
    const uint32_t ds_first = uniform(descriptor_low(
        ds_tile<C>(stage) + consumer.number * ds_panels<C> * ds_panel_bytes, ds_panel_bytes));
    const uint32_t k_first = descriptor_low(ds_k_tile<C>(stage), moving_panel<C>);
    wgmma_fence();
#pragma unroll
    for (int i = C.B_c / 16 - 1; i >= 0; --i)
#pragma unroll
        for (int panel = first; panel < end; ++panel)
            wgmma<operand_dtype<C>, C.d_head>::template shared_a<1, 1>(
                consumer.dq[panel],
                descriptor(ds_first, panel * ds_panel_bytes + i * step_bytes_down),
                descriptor(k_first, i * step_bytes_down), true);
    wgmma_commit();
}

/* Waits for all products. */
template <flash_config_t C>
static __device__ __forceinline__ void await_ds_products(ds_consumer<C> &consumer) {
    wgmma_wait<0>();
#pragma unroll
    for (int panel = 0; panel < ds_panels<C>; ++panel)
        pin_accumulators(consumer.dq[panel]);
}

/* Gives n stages back unread. */
template <flash_config_t C>
static __device__ __forceinline__ void skip_ds_stages(ring_t &ring, int32_t n) {
    gradient_state_t &state = gradient_state<C>();
#pragma unroll 1
    for (; n > 0; --n) {
        wait_full(state.full[ring.stage], ring.parity);
        release(state.empty[ring.stage]);
        step<C.n_stages>(ring);
    }
}

/* These are the blocks that queries of each of a consumer's panels see. */
template <flash_config_t C> struct ds_blocks {
    int32_t of_panel[ds_panels<C>];
    int32_t most, least;
};

template <flash_config_t C>
static __device__ __forceinline__ ds_blocks<C> count_ds_blocks(const flash_params_t &p,
                                                               const gradient_tile_t &tile,
                                                               const ds_consumer<C> &consumer) {
    ds_blocks<C> blocks;
#pragma unroll
    for (int panel = 0; panel < ds_panels<C>; ++panel) {
        const int32_t n =
            count_seen_blocks<C>(p, tile, first_of_panel(consumer, panel), ds_panel_rows);
        blocks.of_panel[panel] = n;
        blocks.most = panel == 0 ? n : max(blocks.most, n);
        blocks.least = panel == 0 ? n : min(blocks.least, n);
    }
    return blocks;
}

/* Adds up n blocks that only queries of one panel see. */
template <flash_config_t C>
static __device__ __forceinline__ void multiply_ds_panel(ds_consumer<C> &consumer, int panel,
                                                         int32_t n) {
    gradient_state_t &state = gradient_state<C>();
    ring_t &ring = consumer.ring;
#pragma unroll 1
    for (; n > 0; --n) {
        wait_full(state.full[ring.stage], ring.parity);
        issue_ds_product<C>(consumer, ring.stage, panel, panel + 1);
        await_ds_products<C>(consumer);
        release(state.empty[ring.stage]);
        step<C.n_stages>(ring);
    }
}

/* Adds up the consumer's blocks of all that pass by. */
template <flash_config_t C>
static __device__ __forceinline__ void multiply_ds_blocks(ds_consumer<C> &consumer,
                                                          const ds_blocks<C> &own, int32_t all) {
    gradient_state_t &state = gradient_state<C>();
    ring_t &ring = consumer.ring;
    skip_ds_stages<C>(ring, all - own.most);
#pragma unroll
    for (int panel = 0; panel < ds_panels<C>; ++panel)
        multiply_ds_panel<C>(consumer, panel, own.of_panel[panel] - own.least);
    if (own.least == 0)
        return;
    int read_stage = ring.stage;
    wait_full(state.full[ring.stage], ring.parity);
    issue_ds_product<C>(consumer, ring.stage);
    step<C.n_stages>(ring);
#pragma unroll 1
    for (int32_t i = own.least; i > 1; --i) {
        wait_full(state.full[ring.stage], ring.parity);
        issue_ds_product<C>(consumer, ring.stage);
        wgmma_wait<1>();
        release(state.empty[read_stage]);
        read_stage = ring.stage;
        step<C.n_stages>(ring);
    }
    await_ds_products<C>(consumer);
    release(state.empty[read_stage]);
}

/* Does the same with K sanitised in blocks from number `whole_end` on, which a mask cuts. */
template <flash_config_t C>
static __device__ __forceinline__ void multiply_sanitised(ds_consumer<C> &consumer,
                                                          const ds_blocks<C> &own, int32_t all,
                                                          int32_t whole_end) {
    gradient_state_t &state = gradient_state<C>();
#pragma unroll 1
    for (int32_t block = all - 1; block >= 0; --block) {
        const int stage = consumer.ring.stage;
        const uint32_t k = ds_k_tile<C>(stage);
        wait_full(state.full[stage], consumer.ring.parity);
        if (block >= whole_end)
            sanitise_tile<C, C.d_head>(k, team_of_all<C>(), [&](const uint32_t *flags) {
#pragma unroll
                for (int panel = 0; panel < ds_panels<C>; ++panel)
                    add_spoilt_rows<C, C.d_head, true>(consumer.dq[panel], k, flags,
                                                       consumer.seen[panel], block * C.B_c);
            });
#pragma unroll
        for (int panel = 0; panel < ds_panels<C>; ++panel)
            if (block < own.of_panel[panel]) {
                issue_ds_product<C>(consumer, stage, panel, panel + 1);
                await_ds_products<C>(consumer);
            }
        release(state.empty[stage]);
        step<C.n_stages>(consumer.ring);
    }
}

/* Returns the number in the tile of the first of the thread's two queries of a panel. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t tile_ds_query(const ds_consumer<C> &consumer, int panel) {
    return first_of_panel(consumer, panel) + ds_query<C>();
}

/* Makes dQ of rows that see no key, or do not exist, 0. */
template <flash_config_t C>
static __device__ __forceinline__ void clear_blind_queries(ds_consumer<C> &consumer, int panel,
                                                           const sm90_backward_params_t &params,
                                                           const gradient_tile_t &tile) {
    const flash_sequence_t &s = tile.sequence;
    const flash_gradients_t &g = params.gradients;
    const int64_t at =
        flash_row_index(&params.problem, &g, &s, tile.batch_index, tile.head, tile.begin);
    float log_sum[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int32_t row = tile_ds_query<C>(consumer, panel) + half * ds_rows_apart<C>;
        log_sum[half] =
            global_load_if(tile.begin + row < s.len_q, g.row_log_sum + at + row, INFINITY);
    }
#pragma unroll
    for (int i = 0; i < C.d_head / 2; ++i)
        consumer.dq[panel][i] = log_sum[i / 2 % 2] == INFINITY ? 0.0f : consumer.dq[panel][i];
}

template <flash_config_t C>
static __device__ __forceinline__ seen_t seen_by_ds_queries(const flash_params_t &p,
                                                            const gradient_tile_t &tile,
                                                            const ds_consumer<C> &consumer,
                                                            int panel) {
    const int32_t row = tile.begin + tile_ds_query<C>(consumer, panel);
    seen_t seen = {};
    for (int half = 0; half < 2; ++half)
        seen.end[half] = seen_by<C>(p, tile, row + half * ds_rows_apart<C>).end;
    return seen;
}

template <flash_config_t C, pass_t PASS>
static __device__ __forceinline__ void ds_pass(ds_consumer<C> &consumer,
                                               const sm90_backward_params_t &params) {
    const flash_params_t &p = params.problem;
    const gradient_tile_t tile = find_gradient_tile<C>(params);
    const gradient_steps_t all = find_steps<C>(p, tile, 0, C.B_r);
    const ds_blocks<C> own = count_ds_blocks<C>(p, tile, consumer);
#pragma unroll
    for (int panel = 0; panel < ds_panels<C>; ++panel)
        clear(consumer.dq[panel]);
    if constexpr (PASS == SECOND_PASS) {
#pragma unroll
        for (int panel = 0; panel < ds_panels<C>; ++panel)
            consumer.seen[panel] = seen_by_ds_queries<C>(p, tile, consumer, panel);
        multiply_sanitised<C>(consumer, own, all.end, all.whole_end);
    } else {
        multiply_ds_blocks<C>(consumer, own, all.end);
    }
#pragma unroll
    for (int panel = 0; panel < ds_panels<C>; ++panel)
        clear_blind_queries<C>(consumer, panel, params, tile);
}

template <flash_config_t C>
static __device__ __forceinline__ void store_dq_of_ds(const sm90_backward_params_t &params,
                                                      const ds_consumer<C> &consumer) {
    const flash_params_t &p = params.problem;
    const gradient_tile_t tile = find_gradient_tile<C>(params);
#pragma unroll
    for (int panel = 0; panel < ds_panels<C>; ++panel)
        store_gradient<operand_dtype<C>, C.d_head, ds_rows_apart<C>>(
            params.gradients.dq, tile.batch_index, tile.head, tile.sequence.q_begin,
            tile.begin + tile_ds_query<C>(consumer, panel), tile.sequence.len_q, p.d_head,
            consumer.dq[panel], -p.softmax_scale);
}

template <flash_config_t C>
static __device__ __forceinline__ bool are_all_finite(const ds_consumer<C> &consumer) {
    bool is_finite = true;
#pragma unroll
    for (int panel = 0; panel < ds_panels<C>; ++panel)
        is_finite &= are_finite(consumer.dq[panel]);
    return is_finite;
}

template <flash_config_t C>
static __device__ __forceinline__ void consume_dq_of_ds(const sm90_backward_params_t &params) {
    if (!has_rows<C>(find_gradient_tile<C>(params)))
        return;
    ds_consumer<C> consumer;
    consumer.ring = ring_t{0, 0};
    consumer.number = consumer_number();
    run_passes<C>(
        params.problem, [&] { ds_pass<C, FIRST_PASS>(consumer, params); },
        [&] { ds_pass<C, SECOND_PASS>(consumer, params); },
        [&] { return are_all_finite<C>(consumer); }, [&] { store_dq_of_ds<C>(params, consumer); });
}

#endif
