/*
 * The main loop visits the blocks of columns from the first to the last, and if these are queries
 * those of each query head of the group in turn. With two stages the next block is copied beside
 * the products of this one.
 *
 * A part of a block at a time, S and dP are computed, then P and dS, and then products of these
 * with the part are added to gradients. Accumulators of S become operands without a way through
 * shared memory, but where warps share rows: each has some of the columns of the gradients,
 * computes a part of the block's P and dS, and hands it to the others.
 */
#ifndef FLASH_KERNELS_SM80_BACKWARD_MAINLOOP_CUH
#define FLASH_KERNELS_SM80_BACKWARD_MAINLOOP_CUH

#include "sm80/backward/kept_ds.cuh"
#include "sm80/backward/load.cuh"
#include "sm80/backward/products.cuh"
#include "sm80/backward/sanitise.cuh"
#include "sm80/backward/scores.cuh"
#include "sm80/backward/tile.cuh"

/* The gradients of a warp: dQ, or dK and dV. */
template <flash_config_t C> struct warp_gradients {
    gradient_rows<C> first;     /* dQ or dK */
    gradient_rows<C> second[1]; /* dV; unused with dQ */
};

/* A block of columns. */
typedef struct column_block {
    int32_t member; /* of the group's query heads, if columns are queries */
    int32_t number;
} column_block_t;

static __device__ __forceinline__ column_block_t next_block(const gradient_tile_t &tile,
                                                            column_block_t at) {
    ++at.number;
    if (at.number == tile.block_end)
        at = {at.member + 1, tile.block_begin};
    return at;
}

/* ---- P and dS that warps hand each other: fragments, lane by lane ---- */

template <flash_config_t C>
static __device__ __forceinline__ uint32_t handed_fragment(uint32_t handed, int warp, int x, int m,
                                                           int step) {
    constexpr int operands = rows_are_keys<C> ? 2 : 1;
    const int fragment = ((warp * operands + x) * m_tiles<C> + m) * part_steps<C> + step;
    return handed + (fragment * 32 + threadIdx.x % 32) * 16;
}

template <flash_config_t C>
static __device__ __forceinline__ void hand_over(uint32_t handed, int x,
                                                 const operand_part<C> &part) {
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int step = 0; step < part_steps<C>; ++step) {
            const uint32_t(&a)[4] = part.a[m][step];
            shared_store(handed_fragment<C>(handed, warp_number(), x, m, step),
                         uint4{a[0], a[1], a[2], a[3]});
        }
}

template <flash_config_t C>
static __device__ __forceinline__ operand_part<C> take_over(uint32_t handed, int warp, int x) {
    operand_part<C> part;
#pragma unroll
    for (int m = 0; m < m_tiles<C>; ++m)
#pragma unroll
        for (int step = 0; step < part_steps<C>; ++step) {
            const uint4 a = shared_load(handed_fragment<C>(handed, warp, x, m, step));
            part.a[m][step][0] = a.x, part.a[m][step][1] = a.y;
            part.a[m][step][2] = a.z, part.a[m][step][3] = a.w;
        }
    return part;
}

/* Waits for the warps that share rows. */
template <flash_config_t C> static __device__ __forceinline__ void await_sharing_warps() {
    asm volatile("bar.sync %0, %1;\n" ::"r"(1 + warp_number() / sharing_warps<C>),
                 "n"(32 * sharing_warps<C>)
                 : "memory");
}

/* ---- A block ---- */

/* A thread keeps these over the main loop. */
template <flash_config_t C> struct operands {
    uint32_t shared;
    score_unit_t unit;
    row_sums<C> sums; /* if rows are queries */
    int stage;        /* of the block that is computed */
    int slot;         /* of its flags (sanitise.cuh), and of its place in kept dS */
};

/* Kernels of dK and dV with one stage refill it half by half, beside the products with the other,
 * if no other block of the multiprocessor computes meanwhile:
 *
 *     dV += P^T dO | copy the next dO | dK += dS^T Q | copy the next Q | dP^T = V dO^T | S^T = K
 * Q^T
 */
template <flash_config_t C>
constexpr bool has_halves = rows_are_keys<C> &&sharing_warps<C> != 1 && C.n_stages == 1 &&
                            sm80_backward_blocks_per_sm(&C) == 1;

/* Computes P and dS of a part of a block: of S and dP then. A masked block has arrived; of another
 * one of two halves dO has. */
template <flash_config_t C, bool MASKED>
static __device__ __forceinline__ void
compute_part(score_part<C> &s, score_part<C> &d_p, const flash_params_t &p,
             const gradient_tile_t &tile, const operands<C> &x, column_block_t block, int part) {
    const int first = part * part_columns<C>;
    const uint32_t rows = x.shared + first_row_of_warp<C>() * row_bytes<C> + lane_down_first<C>();
    const uint32_t columns =
        stage_address<C>(x.shared, x.stage) + first * row_bytes<C> + lane_across_first<C>();
    const uint32_t sums = sums_address<C>(x.shared, x.stage) + first * (int)sizeof(float);
    multiply_rows<C>(d_p, rows + tile_bytes<C>, columns + step_bytes<C>);
    if constexpr (has_halves<C> && !MASKED) {
        async_copy_wait_all();
        __syncthreads();
    }
    multiply_rows<C>(s, rows, columns);
    if constexpr (MASKED && has_mask<C>) {
        spoil_flagged<C>(s, x.slot, 0, first);
        if constexpr (rows_are_keys<C>)
            spoil_flagged<C>(d_p, x.slot, 1, first);
    }
    finish_scores<C, MASKED>(s, d_p, p, tile, x.unit, x.sums, sums, block.member,
                             block.number * step_rows<C> + first);
}

/* Returns the lane's place in a part of the first columns, at those of the warp's gradients. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t place_in_part(const operands<C> &x, int part) {
    return stage_address<C>(x.shared, x.stage) + part * part_columns<C> * row_bytes<C> +
           share_of_warp<C>() * warp_columns<C> * element_bytes + lane_down_first<C>();
}

/* Adds what a part of the block gives to dV. */
template <flash_config_t C>
static __device__ __forceinline__ void add_p(warp_gradients<C> &gradients, const operands<C> &x,
                                             int part, const operand_part<C> &p) {
    add_product<C>(gradients.second[0], p, place_in_part<C>(x, part) + step_bytes<C>);
}

/* Adds what it gives to dQ or dK. */
template <flash_config_t C>
static __device__ __forceinline__ void add_d_s(warp_gradients<C> &gradients, const operands<C> &x,
                                               int part, const operand_part<C> &d_s) {
    add_product<C>(gradients.first, d_s, place_in_part<C>(x, part));
}

/* ---- Copies of the next block ---- */

template <flash_config_t C>
static __device__ __forceinline__ int32_t count_members(const flash_backward_params_t &params) {
    return rows_are_keys<C> ? params.forward.group : 1;
}

/* Starts to copy the next block, if there is one, into its stage; of two halves Q. */
template <flash_config_t C>
static __device__ __forceinline__ void copy_next_block(const flash_backward_params_t &params,
                                                       const gradient_tile_t &tile,
                                                       const operands<C> &x, column_block_t next) {
    const int stage = (x.stage + 1) % C.n_stages;
    if (next.member < count_members<C>(params)) {
        if constexpr (has_halves<C>)
            copy_q_block<C>(x.shared, stage, params, tile, next.member, next.number);
        else
            copy_block<C>(x.shared, stage, params, tile, next.member, next.number);
        prepare_kept_block<C>(params, tile, (x.slot + 1) % FLAG_SLOTS, next.member, next.number);
    }
    async_copy_commit();
}

/* Starts to copy the next dO, if there is one, when all warps are done with this one. */
template <flash_config_t C>
static __device__ __forceinline__ void copy_next_d_o(const flash_backward_params_t &params,
                                                     const gradient_tile_t &tile,
                                                     const operands<C> &x, column_block_t next) {
    __syncthreads();
    if (next.member < count_members<C>(params))
        copy_d_o_block<C>(x.shared, 0, params, tile, next.member, next.number);
    async_copy_commit();
}

/* ---- The products of a block ---- */

/* Computes a block whose parts the sharing warps hand each other. */
template <flash_config_t C, bool MASKED>
static __device__ __forceinline__ void
process_shared_block(const flash_backward_params_t &params, const gradient_tile_t &tile,
                     const operands<C> &x, warp_gradients<C> &gradients, column_block_t block) {
    const uint32_t handed = handed_address<C>(x.shared);
    const int first_warp = warp_number() / sharing_warps<C> * sharing_warps<C>;
    {
        score_part<C> s, d_p;
        compute_part<C, MASKED>(s, d_p, params.forward, tile, x, block, share_of_warp<C>());
        const operand_part<C> d_s = round_part<C>(d_p);
        hand_over<C>(handed, 0, d_s);
        keep_part<C>(x.slot, share_of_warp<C>(), d_s);
        if constexpr (rows_are_keys<C>)
            hand_over<C>(handed, 1, round_part<C>(s));
    }
    await_sharing_warps<C>();
    if constexpr (rows_are_keys<C>)
#pragma unroll
        for (int part = 0; part < sharing_warps<C>; ++part)
            add_p<C>(gradients, x, part, take_over<C>(handed, first_warp + part, 1));
    if constexpr (has_halves<C>)
        copy_next_d_o<C>(params, tile, x, next_block(tile, block));
#pragma unroll
    for (int part = 0; part < sharing_warps<C>; ++part)
        add_d_s<C>(gradients, x, part, take_over<C>(handed, first_warp + part, 0));
}

template <flash_config_t C, bool MASKED>
static __device__ __forceinline__ void
process_block(const flash_backward_params_t &params, const gradient_tile_t &tile,
              const operands<C> &x, warp_gradients<C> &gradients, column_block_t block) {
    if constexpr (sharing_warps<C> != 1) {
        process_shared_block<C, MASKED>(params, tile, x, gradients, block);
    } else {
#pragma unroll 1
        for (int part = 0; part < parts<C>; ++part) {
            score_part<C> s, d_p;
            compute_part<C, MASKED>(s, d_p, params.forward, tile, x, block, part);
            const operand_part<C> p_of_part = round_part<C>(s), d_s = round_part<C>(d_p);
            keep_part<C>(x.slot, part, d_s);
            if constexpr (rows_are_keys<C>)
                add_p<C>(gradients, x, part, p_of_part);
            add_d_s<C>(gradients, x, part, d_s);
        }
    }
}

/* ---- All blocks ---- */

template <flash_config_t C>
static __device__ __forceinline__ void
process_any_block(const flash_backward_params_t &params, const gradient_tile_t &tile,
                  const operands<C> &x, warp_gradients<C> &gradients, column_block_t block) {
    if (!is_cut<C>(tile, block.number)) {
        process_block<C, false>(params, tile, x, gradients, block);
        return;
    }
    process_block<C, true>(params, tile, x, gradients, block);
    if constexpr (has_mask<C> && rows_are_keys<C>)
        add_non_finite_rows<C>(gradients.second[0], params, tile, x.slot, block.member,
                               block.number);
}

/* Waits until the block has arrived, or of two halves dO, and until all warps are done with the
 * block before it. */
template <flash_config_t C>
static __device__ __forceinline__ void await_block(const gradient_tile_t &tile,
                                                   const operands<C> &x, column_block_t block) {
    const bool is_masked = is_cut<C>(tile, block.number);
    if (has_halves<C> && !is_masked)
        async_copy_wait_all_but_last();
    else
        async_copy_wait_all();
    if constexpr (has_mask<C>) {
        if (is_masked)
            sanitise_block<C>(stage_address<C>(x.shared, x.stage), x.slot);
        clear_flags((x.slot + 1) % FLAG_SLOTS);
    }
    __syncthreads();
}

/* Starts to copy the tile and the first block. */
template <flash_config_t C>
static __device__ __forceinline__ operands<C>
begin_blocks(const flash_backward_params_t &params, const gradient_tile_t &tile, uint32_t shared) {
    operands<C> x = {shared, score_unit_of<has_softcap<C>>(params.forward)};
    copy_tile<C>(shared, params, tile);
    if constexpr (has_halves<C>) {
        copy_d_o_block<C>(shared, 0, params, tile, 0, tile.block_begin);
        async_copy_commit();
        copy_q_block<C>(shared, 0, params, tile, 0, tile.block_begin);
    } else {
        copy_block<C>(shared, 0, params, tile, 0, tile.block_begin);
    }
    async_copy_commit();
    prepare_kept_block<C>(params, tile, 0, 0, tile.block_begin);
    if constexpr (!rows_are_keys<C>)
        x.sums = load_row_sums<C>(params, tile);
    initialize_dropout<C>(params.forward, tile);
    return x;
}

/* Keeps the tile in shared memory, because the main loop has no registers left. */
template <flash_config_t C>
static __device__ __forceinline__ const gradient_tile_t &keep_tile(const gradient_tile_t &tile) {
    __shared__ gradient_tile_t kept;
    static_assert(
        FLAG_SLOTS * (sizeof(non_finite_flags_t) + most_ds_tiles_of_rows * sizeof(char *)) +
                sizeof(flash_dropout_head_t) + sizeof kept <=
            SM80_BACKWARD_STATIC_SHARED_BYTES,
        "the host counts on it");
    if (threadIdx.x == 0)
        kept = tile;
    if constexpr (has_mask<C>)
        clear_flags(0);
    __syncthreads();
    return kept;
}

template <flash_config_t C>
static __device__ __forceinline__ void process_blocks(const flash_backward_params_t &params,
                                                      const gradient_tile_t &found, uint32_t shared,
                                                      warp_gradients<C> &gradients) {
    column_block_t block = {0, found.block_begin};
    if (found.block_begin >= found.block_end)
        return;
    const gradient_tile_t &tile = keep_tile<C>(found);
    operands<C> x = begin_blocks<C>(params, tile, shared);
    while (block.member < count_members<C>(params)) {
        await_block<C>(tile, x, block);
        if constexpr (C.n_stages != 1)
            copy_next_block<C>(params, tile, x, next_block(tile, block));
        process_any_block<C>(params, tile, x, gradients, block);
        block = next_block(tile, block); /* again: it would take registers meanwhile */
        if constexpr (C.n_stages == 1) {
            __syncthreads();
            copy_next_block<C>(params, tile, x, block);
        }
        x.stage = (x.stage + 1) % C.n_stages;
        x.slot = (x.slot + 1) % FLAG_SLOTS;
    }
}

#endif
