/*
 * A block of SM90_MLA has in shared memory a tile of Q, a ring of blocks of K, of which V is the
 * first columns, and behind them what the two consumers exchange, and the barriers of the ring.
 *
 *     0                                                       mla_shared_bytes()
 *     | Q                | K 0 | K 1 | mla_exchange | mla_state_t |
 *
 * The panels of a block of K arrive, or leave the converter, in MLA_PARTS parts, each with a
 * barrier of its own, so that scores begin with the first. Both consumers release a stage when they
 * have multiplied by it.
 */
#ifndef FLASH_KERNELS_SM90_MLA_STATE_CUH
#define FLASH_KERNELS_SM90_MLA_STATE_CUH

#include "sm90/decode/barriers.cuh"
#include "sm90/mla/derive.cuh"

enum { MLA_MOST_STAGES = 2 };

typedef struct mla_state {
    uint64_t full[MLA_MOST_STAGES][MLA_PARTS];
    uint64_t landed[MLA_MOST_STAGES]; /* the block is there to be converted (convert.cuh) */
    uint64_t empty[MLA_MOST_STAGES];
    uint64_t p_ready; /* consumer 0 has left P of a block in the exchange */
    uint64_t p_taken; /* consumer 1 has it */
} mla_state_t;
static_assert(sizeof(mla_state_t) <= MLA_STATE_BYTES, "behind the exchange");

/* The consumer that computes scores leaves P and its factors for the other. Both have the same
 * fragments of P and the same rows in each of their threads. */
template <flash_config_t C> struct mla_exchange {
    uint4 p[key_steps<C>][SM90_WARPGROUP_THREADS];
    float2 factors[SM90_WARPGROUP_THREADS];
    decode_weight_t weights[C.B_r]; /* at the end */
    float score_factors[C.B_r];     /* of rows of Q that were converted (queries.cuh) */
};

template <flash_config_t C> static __device__ __forceinline__ mla_exchange<C> &exchange() {
    static_assert(sizeof(mla_exchange<C>) == mla_exchange_bytes(&C), "as the host counts");
    return *(mla_exchange<C> *)(shared_memory + q_bytes<C> + C.n_stages * k_bytes<C>);
}

template <flash_config_t C> static __device__ __forceinline__ mla_state_t &mla_state() {
    return *(mla_state_t *)(shared_memory + mla_shared_bytes(&C) - MLA_STATE_BYTES);
}

template <flash_config_t C> static __device__ __forceinline__ uint32_t key_tile(int stage) {
    return q_tile<C>(0) + q_bytes<C> + stage * k_bytes<C>;
}

/* Initialises the barriers of the ring, in one thread. */
template <flash_config_t C> static __device__ __forceinline__ void initialize_mla_state() {
    mla_state_t &state = mla_state<C>();
    constexpr int filling_warps = converts<C> ? warpgroup_warps : 1;
    for (int stage = 0; stage < C.n_stages; ++stage) {
        for (int part = 0; part < MLA_PARTS; ++part)
            mbarrier_init(shared_address(&state.full[stage][part]), filling_warps);
        mbarrier_init(shared_address(&state.landed[stage]), 1);
        mbarrier_init(shared_address(&state.empty[stage]), consumers<C> * warpgroup_warps);
    }
    mbarrier_init(shared_address(&state.p_ready), SM90_WARPGROUP_THREADS);
    mbarrier_init(shared_address(&state.p_taken), SM90_WARPGROUP_THREADS);
    mbarrier_init_fence();
}

/* Returns the barrier of a part in the ring's stage. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t part_barrier(const ring_t &ring, int part) {
    return shared_address(&mla_state<C>().full[ring.stage][part]);
}

/* Waits until a part of a block is there for wgmma. */
template <flash_config_t C>
static __device__ __forceinline__ void await_part(const ring_t &k, int part) {
    wait_keys<C>(mla_state<C>().full[k.stage][part], k.parity);
}

#endif
