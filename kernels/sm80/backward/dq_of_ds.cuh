/*
 * dQ of dS that a kernel of dK and dV has kept, dQ += dS K: a tile of queries stays, and blocks of
 * keys and of dS go by. A thread reads fragments of dS as the other kernel's had them, and
 * transposes each of their four matrices.
 *
 * Where a mask cuts a block, or the end of the keys does, what a query does not see counts as 0: it
 * was perhaps never written. NaN and infinities of K are zeros there, and dS of keys that have such
 * is NaN where it is seen, as in the kernel that computes dQ alone (sanitise.cuh).
 *
 * Shared memory has stages of
 *
 *     | K of a block | tiles of dS: those of the first queries first |
 */
#ifndef FLASH_KERNELS_SM80_BACKWARD_DQ_OF_DS_CUH
#define FLASH_KERNELS_SM80_BACKWARD_DQ_OF_DS_CUH

#include "sm80/backward/kept_ds.cuh"
#include "sm80/backward/load.cuh"
#include "sm80/backward/products.cuh"
#include "sm80/backward/sanitise.cuh"
#include "sm80/backward/store.cuh"
#include "sm80/backward/tile.cuh"
#include "sm80/ptx/movmatrix.cuh"

/* ---- The rows of tiles of dS of a tile of queries ---- */

template <flash_config_t C> constexpr int ds_rows = tile_rows<C> / ds_tile_rows;
template <flash_config_t C> constexpr int ds_stage_bytes = sm80_dq_of_ds_stage_bytes(&C);

/* Tiles begin ... end - 1 of a row were kept: tile i at first + i * step. */
typedef struct ds_row {
    const char *first;
    int32_t step;
    int32_t begin;
    int32_t end;
} ds_row_t;

template <flash_config_t C>
static __device__ __forceinline__ ds_row_t find_ds_row(const flash_backward_params_t &params,
                                                       const gradient_tile_t &tile, int32_t row) {
    const int32_t first_query = row * ds_tile_rows;
    if (first_query >= tile.sequence.len_q)
        return ds_row_t{nullptr, 0, 0, 0};
    const int32_t last_query = min(first_query + ds_tile_rows, tile.sequence.len_q) - 1;
    const char *first = ds_tile_address<C>(params, tile, tile.head, row, 0);
    const char *second = ds_tile_address<C>(params, tile, tile.head, row, 1);
    const int32_t begin = columns_of_row<C>(params.forward, tile.sequence, first_query).begin;
    const int32_t end = columns_of_row<C>(params.forward, tile.sequence, last_query).end;
    return ds_row_t{first, (int32_t)(second - first), begin / ds_tile_rows,
                    end / ds_tile_rows + (end % ds_tile_rows > 0)};
}

/* Threads share this over the main loop. */
template <flash_config_t C> struct dq_of_ds_state {
    gradient_tile_t tile;
    ds_row_t rows[ds_rows<C>];
};

template <flash_config_t C>
static __device__ __forceinline__ const dq_of_ds_state<C> &
share_state(const flash_backward_params_t &params, const gradient_tile_t &tile) {
    __shared__ dq_of_ds_state<C> state;
    static_assert(FLAG_SLOTS * sizeof(non_finite_flags_t) + sizeof state <=
                      SM80_BACKWARD_STATIC_SHARED_BYTES,
                  "the host counts on it");
    if (threadIdx.x == 0)
        state.tile = tile;
    if (threadIdx.x < ds_rows<C>)
        state.rows[threadIdx.x] =
            find_ds_row<C>(params, tile, tile.row_begin / ds_tile_rows + (int)threadIdx.x);
    if constexpr (has_mask<C>)
        clear_flags(0);
    __syncthreads();
    return state;
}

/* ---- Copies ---- */

/* Starts to copy tiles of dS of a block of keys, zeros for those that were not kept. */
template <flash_config_t C>
static __device__ __forceinline__ void copy_ds(uint32_t shared, const dq_of_ds_state<C> &state,
                                               int32_t block) {
    constexpr int chunks = ds_tile_bytes / chunk_bytes;
    static_assert(chunks % block_threads<C> == 0, "threads copy whole passes");
    static_assert(step_rows<C> == ds_tile_rows, "a block of keys is one of tiles of dS");
#pragma unroll
    for (int i = 0; i < ds_rows<C>; ++i) {
        const ds_row_t &row = state.rows[i];
        const bool is_kept = block >= row.begin && block < row.end;
        const int at = threadIdx.x * chunk_bytes;
        const char *from = row.first + (int64_t)block * row.step + at;
#pragma unroll
        for (int pass = 0; pass < chunks / block_threads<C>; ++pass) {
            const int offset = pass * block_threads<C> * chunk_bytes;
            async_copy_or_zero(shared + i * ds_tile_bytes + at + offset, from + offset, is_kept);
        }
    }
}

template <flash_config_t C>
static __device__ __forceinline__ void
copy_k_and_ds(uint32_t stage, const flash_backward_params_t &params, const dq_of_ds_state<C> &state,
              int32_t block) {
    const flash_params_t &p = params.forward;
    const gradient_tile_t &tile = state.tile;
    const int32_t key = block * step_rows<C>;
    copy_rows<C, step_rows<C>>(stage,
                               make_source(p.k, p.k_stride, p.d_head, tile.batch_index,
                                           tile.head / p.group, tile.sequence.k_begin + key),
                               tile.sequence.len_k - key);
    copy_ds<C>(stage + step_bytes<C>, state, block);
}

/* ---- A block ---- */

/* Returns dS of 16 * part_steps keys of the warp's queries, as fragments of A. */
template <flash_config_t C>
static __device__ __forceinline__ operand_part<C> load_ds(uint32_t tiles, int part) {
    operand_part<C> x;
    const int first_query = first_row_of_warp<C>() / 16;
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int step = 0; step < part_steps<C>; ++step) {
            const int fragment =
                (first_query + m) * ds_tile_fragments + part * part_steps<C> + step;
            const uint4 a =
                shared_load(tiles + fragment * ds_fragment_bytes + threadIdx.x % 32 * chunk_bytes);
            x.a[m][step][0] = movmatrix_trans(a.x), x.a[m][step][1] = movmatrix_trans(a.z);
            x.a[m][step][2] = movmatrix_trans(a.y), x.a[m][step][3] = movmatrix_trans(a.w);
        }
    return x;
}

/* Returns 16 bits of dS: 0 if a key is hidden, and NaN if it is flagged. */
static __device__ __forceinline__ uint32_t see_key(uint32_t bits, bool is_seen, bool is_flagged) {
    return !is_seen ? 0 : is_flagged ? 0x7fff : bits;
}

/* Hides keys that queries do not see. first_key: of the part, in the block. */
template <flash_config_t C>
static __device__ __forceinline__ void hide_keys(operand_part<C> &x, const flash_params_t &p,
                                                 const gradient_tile_t &tile, int slot,
                                                 int32_t block, int first_key) {
    const int32_t first = first_key + column_of_thread();
    const bool has_flagged = has_mask<C> && has_flags(slot, 0);
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const flash_range_t keys =
                columns_of_row<C>(p, tile.sequence, tile.row_begin + row_of_thread<C>(m, half));
            const int32_t begin = keys.begin - block * step_rows<C>;
            const int32_t end = keys.end - block * step_rows<C>;
#pragma unroll
            for (int n = 0; n < 2 * part_steps<C>; ++n) {
                uint32_t &pair = x.a[m][n / 2][n % 2 * 2 + half];
                uint32_t bits[2] = {pair & 0xffff, pair >> 16};
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int key = first + n * 8 + i;
                    bits[i] = see_key(bits[i], key >= begin && key < end,
                                      has_flagged && is_flagged(slot, 0, key));
                }
                pair = bits[0] | bits[1] << 16;
            }
        }
}

template <flash_config_t C>
static __device__ __forceinline__ void add_block(gradient_rows<C> &d_q, const flash_params_t &p,
                                                 const gradient_tile_t &tile, uint32_t stage,
                                                 int slot, int32_t block) {
    const uint32_t columns =
        stage + share_of_warp<C>() * warp_columns<C> * element_bytes + lane_down_first<C>();
    const bool is_masked = is_cut<C>(tile, block);
#pragma unroll
    for (int part = 0; part < step_rows<C> / part_columns<C>; ++part) {
        operand_part<C> d_s = load_ds<C>(stage + step_bytes<C>, part);
        if (is_masked)
            hide_keys<C>(d_s, p, tile, slot, block, part * part_columns<C>);
        add_product<C>(d_q, d_s, columns + part * part_columns<C> * row_bytes<C>);
    }
}

/* ---- All blocks ---- */

template <flash_config_t C>
static __device__ __forceinline__ void add_blocks(gradient_rows<C> &d_q,
                                                  const flash_backward_params_t &params,
                                                  const gradient_tile_t &found, uint32_t shared) {
    if (found.block_begin >= found.block_end)
        return;
    const dq_of_ds_state<C> &state = share_state<C>(params, found);
    const gradient_tile_t &tile = state.tile;
    int slot = 0, stage = 0;
    copy_k_and_ds<C>(shared, params, state, tile.block_begin);
#pragma unroll 1
    for (int32_t block = tile.block_begin; block < tile.block_end; ++block) {
        const uint32_t of_block = shared + stage * ds_stage_bytes<C>;
        stage ^= 1;
        async_copy_wait_all();
        if constexpr (has_mask<C>) {
            if (is_cut<C>(tile, block))
                zero_non_finite<C>(of_block, slot, 0);
            clear_flags((slot + 1) % FLAG_SLOTS);
        }
        __syncthreads();
        if (block + 1 < tile.block_end)
            copy_k_and_ds<C>(shared + stage * ds_stage_bytes<C>, params, state, block + 1);
        add_block<C>(d_q, params.forward, tile, of_block, slot, block);
        slot = (slot + 1) % FLAG_SLOTS;
    }
}

/* ---- The result ---- */

/* Stores dQ as store_gradient() does, as many rows at a time as stages have room for in fp32. */
template <flash_config_t C>
static __device__ __forceinline__ void store_dq(const flash_backward_params_t &params,
                                                const gradient_tile_t &tile, uint32_t shared,
                                                const gradient_rows<C> &d_q) {
    constexpr int row_floats = C.d_head * (int)sizeof(float);
    constexpr int rows =
        tile_rows<C> * row_floats <= sm80_dq_of_ds_shared_bytes(&C) ? tile_rows<C> : ds_tile_rows;
    static_assert(rows * row_floats <= sm80_dq_of_ds_shared_bytes(&C) && rows % 8 == 0,
                  "rows fit, and their chunks lie as those of row 0 on");
#pragma unroll 1
    for (int first = 0; first < tile_rows<C>; first += rows) {
        gradient_tile_t part = tile;
        part.rows = min(tile.rows - first, rows);
        __syncthreads();
        if (first_row_of_warp<C>() / rows == first / rows)
            stage_gradient<C>(shared - first * row_floats, d_q, scale_of_ds<C>(params.forward));
        __syncthreads();
        store_staged<C>(params.gradients.dq, shared, part,
                        tile.sequence.q_begin + tile.row_begin + first, params.forward.d_head);
    }
}

template <flash_config_t C>
static __device__ __forceinline__ void sm80_dq_of_ds(const flash_backward_params_t &params) {
    extern __shared__ __align__(128) unsigned char shared[];
    const gradient_tile_t tile = find_tile<C>(params);
    gradient_rows<C> d_q = {};
    if (tile.rows <= 0)
        return;
    add_blocks<C>(d_q, params, tile, shared_address(shared));
    store_dq<C>(params, find_tile<C>(params), shared_address(shared), d_q);
}

#endif
