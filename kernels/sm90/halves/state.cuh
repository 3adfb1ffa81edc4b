/*
 * A block has in shared memory a tile of Q, the stages of K and V, and behind them what the two
 * consumers exchange, and the barriers.
 *
 *                 0                                             halves_shared_bytes()
 *     SM90_MLA    | Q     | K 0    | K 1    | halves_exchange | halves_state_t |
 *     SM90_WIDE   | Q     | K      | V      | halves_exchange | halves_state_t |
 *
 * In a block that walks a part of the batch halves_tiles_t follows.
 *
 * The panels of a block arrive, or leave the converter, in parts, each with a barrier of its own,
 * so that scores begin with the first part of K, and a consumer's product with its half of V. A
 * stage is released by each consumer that multiplies by it.
 */
#ifndef FLASH_KERNELS_SM90_HALVES_STATE_CUH
#define FLASH_KERNELS_SM90_HALVES_STATE_CUH

#include "common/decode/block.cuh"
#include "sm90/decode/barriers.cuh"
#include "sm90/decode/walk.cuh"
#include "sm90/halves/derive.cuh"

enum { HALVES_MOST_PARTS = 4, HALVES_TILES = 2 };

/* A tile of a block that walks. */
typedef struct halves_tile {
    decode_block_t block;
    key_walk_t walk;
    int32_t exists;
} halves_tile_t;

/* The barriers of the stages of K or V. */
typedef struct halves_ring {
    uint64_t full[HALVES_MOST_STAGES][HALVES_MOST_PARTS];
    uint64_t landed[HALVES_MOST_STAGES]; /* the block is there to be converted (convert.cuh) */
    uint64_t empty[HALVES_MOST_STAGES];
} halves_ring_t;

typedef struct halves_state {
    halves_ring_t of[2]; /* by kv_tensor; that of V is unused where V lies in K */
    uint64_t p_ready;    /* consumer 0 has left P of a block in the exchange */
    uint64_t p_taken;    /* consumer 1 has it */
    uint32_t k_holes[HALVES_MOST_STAGES][DECODE_UNIT_KEYS / 32]; /* as block_holes_t */
} halves_state_t;
static_assert(sizeof(halves_state_t) <= HALVES_STATE_BYTES, "behind the exchange");

/* The tiles of a block that walks a part of the batch (halves/tiles.cuh). */
typedef struct halves_tiles {
    uint64_t full[HALVES_TILES];
    uint64_t empty[HALVES_TILES];
    uint64_t q_stored; /* all consumers' threads have stored their parts of the first tile's Q */
    uint64_t q_full;   /* Q of a tile after the first is there */
    uint64_t q_empty;  /* the last scores of a tile are complete */
    halves_tile_t of[HALVES_TILES];
} halves_tiles_t;
static_assert(sizeof(halves_tiles_t) <= HALVES_TILES_BYTES, "behind the state");

/* The consumer that computes scores leaves P and its factors for the other. Both have the same
 * fragments of P and the same rows in each of their threads. */
template <flash_config_t C> struct halves_exchange {
    uint4 p[key_steps<C>][SM90_WARPGROUP_THREADS];
    float2 factors[SM90_WARPGROUP_THREADS];
    decode_weight_t weights[C.B_r]; /* at the end */
    float score_factors[C.B_r];     /* of rows of Q that were converted (queries.cuh) */
};

template <flash_config_t C> static __device__ __forceinline__ halves_exchange<C> &exchange() {
    static_assert(sizeof(halves_exchange<C>) == halves_exchange_bytes(&C), "as the host counts");
    return *(halves_exchange<C> *)(shared_memory + q_bytes<C> +
                                   C.n_stages * halves_stage_bytes(&C));
}

template <flash_config_t C> static __device__ __forceinline__ halves_state_t &halves_state() {
    return *(halves_state_t *)(shared_memory + halves_shared_bytes(&C) - HALVES_STATE_BYTES -
                               halves_tiles_bytes(&C));
}

template <flash_config_t C> static __device__ __forceinline__ halves_tiles_t &halves_tiles() {
    static_assert(halves_tiles_bytes(&C) > 0, "kernels that walk have them");
    return *(halves_tiles_t *)(shared_memory + halves_shared_bytes(&C) - HALVES_TILES_BYTES);
}

/* Returns the block of K or V in a stage. */
template <flash_config_t C, kv_tensor T>
static __device__ __forceinline__ uint32_t stage_tile(int stage) {
    constexpr int offset = T == TENSOR_V && !v_in_k<C> ? k_bytes<C> : 0;
    return q_tile<C>(0) + q_bytes<C> + stage * halves_stage_bytes(&C) + offset;
}

/* Counts the consumers that multiply by a block: those of K are the scorer alone, unless V lies in
 * it. */
template <flash_config_t C, kv_tensor T>
constexpr int readers = T == TENSOR_K && !v_in_k<C> ? 1 : consumers<C>;

template <flash_config_t C, kv_tensor T>
static __device__ __forceinline__ void initialize_ring(halves_ring_t &ring) {
    constexpr int filling_warps = converts<C> ? warpgroup_warps : 1;
    for (int stage = 0; stage < C.n_stages; ++stage) {
        for (int part = 0; part < tensor_parts<C, T>; ++part)
            mbarrier_init(shared_address(&ring.full[stage][part]), filling_warps);
        mbarrier_init(shared_address(&ring.landed[stage]), 1);
        mbarrier_init(shared_address(&ring.empty[stage]), readers<C, T> * warpgroup_warps);
    }
}

/* Counts the threads that read a tile: those that load K, convert it and multiply by it. */
template <flash_config_t C>
constexpr int tile_readers = consumer_threads<C> +
                             (converts<C> ? SM90_WARPGROUP_THREADS : 0) + warp_threads;

/* Initialises the barriers, in one thread. */
template <flash_config_t C> static __device__ __forceinline__ void initialize_halves_state() {
    halves_state_t &state = halves_state<C>();
    initialize_ring<C, TENSOR_K>(state.of[TENSOR_K]);
    if constexpr (!v_in_k<C>)
        initialize_ring<C, TENSOR_V>(state.of[TENSOR_V]);
    mbarrier_init(shared_address(&state.p_ready), SM90_WARPGROUP_THREADS);
    mbarrier_init(shared_address(&state.p_taken), SM90_WARPGROUP_THREADS);
    mbarrier_init_fence();
}

/* Initialises those of a block of several tiles, too. */
template <flash_config_t C> static __device__ __forceinline__ void initialize_tiles_state() {
    halves_tiles_t &tiles = halves_tiles<C>();
    for (int i = 0; i < HALVES_TILES; ++i) {
        mbarrier_init(shared_address(&tiles.full[i]), 1);
        mbarrier_init(shared_address(&tiles.empty[i]), tile_readers<C>);
    }
    mbarrier_init(shared_address(&tiles.q_stored), consumer_threads<C>);
    mbarrier_init(shared_address(&tiles.q_full), 1);
    mbarrier_init(shared_address(&tiles.q_empty), warpgroup_warps);
    initialize_halves_state<C>();
}

/* Returns the barrier of a part in the ring's stage. */
template <flash_config_t C, kv_tensor T>
static __device__ __forceinline__ uint32_t part_barrier(const ring_t &ring, int part) {
    return shared_address(&halves_state<C>().of[T].full[ring.stage][part]);
}

/* Waits until a part of a block is there for wgmma. */
template <flash_config_t C, kv_tensor T>
static __device__ __forceinline__ void await_part(const ring_t &ring, int part) {
    wait_keys<C>(halves_state<C>().of[T].full[ring.stage][part], ring.parity);
}

/* Waits until a block is there as a whole. */
template <flash_config_t C, kv_tensor T>
static __device__ __forceinline__ void await_parts(const ring_t &ring) {
#pragma unroll
    for (int part = 0; part < tensor_parts<C, T>; ++part)
        await_part<C, T>(ring, part);
}

#endif
