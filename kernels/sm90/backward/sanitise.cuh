/*
 * P and dS are 0 where a mask hides something, but 0 * NaN is NaN, and wgmma cannot tell. So what
 * hidden rows have spoils gradients of a tile, which then is computed once more (passes.cuh). This
 * second pass sanitises the blocks that a mask cuts, between the products by which their scores are
 * computed and those that are added to gradients: infinities and NaNs are added to the gradients
 * that do see them, and replaced by zeros.
 */
#ifndef FLASH_KERNELS_SM90_BACKWARD_SANITISE_CUH
#define FLASH_KERNELS_SM90_BACKWARD_SANITISE_CUH

#include "common/non_finite.cuh"
#include "sm90/backward/masks.cuh"
#include "sm90/backward/state.cuh"

/* Threads that sanitise a tile together wait at a named barrier: those of either consumer, or of
 * both. */
typedef struct team {
    int32_t barrier;
    int32_t threads;
    int32_t flags; /* which of state.rows they use */
} team_t;

template <flash_config_t C> static __device__ __forceinline__ team_t team_of_all() {
    return team_t{gradient_consumers<C> + 1, gradient_consumers<C> * SM90_WARPGROUP_THREADS, 0};
}

static __device__ __forceinline__ team_t team_of_consumer(int consumer) {
    return team_t{1 + consumer, SM90_WARPGROUP_THREADS, consumer};
}

static __device__ __forceinline__ void await_team(const team_t &team) {
    named_barrier_sync(team.barrier, team.threads);
}

/* Calls f(address, row) for each of the thread's chunks of a tile, panel by panel, that has an
 * infinity or a NaN. */
template <flash_config_t C, int COLUMNS, typename F>
static __device__ __forceinline__ void for_each_spoilt_chunk(uint32_t tile, const team_t &team,
                                                             const F &f) {
    constexpr int panel_chunks = SM90_PANEL_BYTES / SM90_CHUNK_BYTES;
    constexpr int chunks = step_rows<C> * COLUMNS / panel_elements<C> * panel_chunks;
#pragma unroll 1
    for (int i = threadIdx.x % team.threads; i < chunks; i += team.threads) {
        const uint32_t at = tile + i * SM90_CHUNK_BYTES;
        if (!is_pair_of_zeros(add_zero_times_chunk<operand_dtype<C>>(0, shared_load(at))))
            f(at, i / panel_chunks % step_rows<C>);
    }
}

/* Loads the thread's pair of elements of group i of eight columns, of a row of a tile. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t load_pair_of_row(uint32_t tile, int row, int i) {
    const uint32_t panel = tile + i / 8 * step_rows<C> * SM90_PANEL_BYTES;
    const uint32_t chunk = panel + row * SM90_PANEL_BYTES + (i % 8 ^ row % 8) * SM90_CHUNK_BYTES;
    return shared_load_32(chunk + tile_column() * 2);
}

/* Adds the infinities and NaNs of a row of the tile to the sums that see it; as NaN where what they
 * are multiplied by, which may be 0, comes of them. */
template <flash_config_t C, int COLUMNS, bool AS_NAN>
static __device__ __forceinline__ void add_spoilt_row(float (&sum)[COLUMNS / 2], uint32_t tile,
                                                      int row, bool upper_sees, bool lower_sees) {
#pragma unroll
    for (int i = 0; i < COLUMNS / 8; ++i) {
        const uint32_t pair = load_pair_of_row<C>(tile, row, i);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const uint16_t bits = (uint16_t)(pair >> 16 * e);
            const float x = AS_NAN ? NAN : dtype_load<operand_dtype<C>>(&bits, 0);
            const bool counts = !is_finite<operand_dtype<C>>(bits);
            sum[4 * i + e] += counts && upper_sees ? x : 0.0f;
            sum[4 * i + 2 + e] += counts && lower_sees ? x : 0.0f;
        }
    }
}

/* Does this with all flagged rows. seen, first: see masks.cuh; the latter without the thread's
 * column. */
template <flash_config_t C, int COLUMNS, bool AS_NAN>
static __device__ __forceinline__ void add_spoilt_rows(float (&sum)[COLUMNS / 2], uint32_t tile,
                                                       const uint32_t *flags, const seen_t &seen,
                                                       int32_t first) {
    const seen_t kept = recall_seen<C>(seen);
#pragma unroll 1
    for (int row = 0; row < step_rows<C>; ++row)
        if (flags[row / 32] >> row % 32 & 1)
            add_spoilt_row<C, COLUMNS, AS_NAN>(sum, tile, row, sees<C>(kept, first + row, 0),
                                               sees<C>(kept, first + row, 1));
}

/* Sanitises a tile, which no other thread than the team's reads any more. add_rows(flags) completes
 * the thread's sums before. */
template <flash_config_t C, int COLUMNS, typename ADD>
static __device__ __forceinline__ void sanitise_tile(uint32_t tile, const team_t &team,
                                                     const ADD &add_rows) {
    uint32_t *const flags = gradient_state<C>().rows[team.flags];
    await_team(team);
    for_each_spoilt_chunk<C, COLUMNS>(tile, team, [&](uint32_t at, int row) {
        (void)at;
        atomicOr(flags + row / 32, 1u << row % 32);
    });
    await_team(team);
    add_rows(flags);
    await_team(team);
    for_each_spoilt_chunk<C, COLUMNS>(tile, team, [&](uint32_t at, int row) {
        shared_store(at, finite_chunk<operand_dtype<C>>(shared_load(at)));
        flags[row / 32] = 0;
    });
    async_proxy_fence();
    await_team(team);
}

/* Sanitises a tile where the thread has one sum. */
template <flash_config_t C, int COLUMNS, bool AS_NAN>
static __device__ __forceinline__ void sanitise(float (&sum)[COLUMNS / 2], uint32_t tile,
                                                const team_t &team, const seen_t &seen,
                                                int32_t first) {
    sanitise_tile<C, COLUMNS>(tile, team, [&](const uint32_t *flags) {
        add_spoilt_rows<C, COLUMNS, AS_NAN>(sum, tile, flags, seen, first);
    });
}

#endif
