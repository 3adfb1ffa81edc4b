/*
 * Shared memory of a block: the tiles of Q, K and V, the barriers that hand them from the producer
 * to the consumers and back, and notes from role to role.
 *
 * K and V each have a ring of stages, and each stage two barriers. For the n-th use of a stage:
 *
 *   empty  counts the consumers' warps, each of which arrives when it has read the stage for the
 *          last time. Complete: the stage is free, and the producer may load into it. Before the
 *          first use it counts as complete, for a wait on the parity before the first passes.
 *   full   counts one arrival and the bytes of a whole block: the producer arrives, announces the
 *          bytes and starts the load, whose bytes TMA counts as they land. The phase stays open
 *          until both are there. Complete: the consumers may read the stage.
 *
 * Neither barrier can run a phase ahead: the producer waits for `empty` before it uses a stage
 * again, and the consumers, who make `empty` complete, wait for `full` before they read.
 *
 * A block of V that a mask cuts takes a step more: its bytes are counted by `v_landed`, for which
 * the guard alone waits; `v_full` then counts the guard's arrival, once V is fit to be read.
 *
 * Q has `q_full` and `q_empty` in the same way. O on its way out lies in Q's place, in stages of V
 * or in a place of its own: each consumer's warps arrive at `o_staged` when they have left it
 * there, and the carrier arrives at `o_left`, or for Q's place at `q_empty`, when TMA has read it.
 *
 * Tiles go from the scheduler to everyone by `assigned` and `taken`, which are full and empty of a
 * ring of assignments.
 */
#ifndef FLASH_KERNELS_SM90_BLOCK_STATE_CUH
#define FLASH_KERNELS_SM90_BLOCK_STATE_CUH

#include "common/ptx/shared_memory.cuh"
#include "sm90/ptx/barrier.cuh"
#include "sm90/ptx/warpgroup.cuh"
#include "sm90/tile.cuh"

enum { MOST_K_STAGES = 4, MOST_V_STAGES = 5, MOST_Q_PLACES = 2, TILES_AHEAD = 4 };

/* A tile as the scheduler announces it to the other roles. */
template <flash_config_t C> struct alignas(16) assignment_of {
    tile_of<C> tile;
    int32_t round; /* negative: the pass is over */
};

enum { ASSIGNMENT_WORDS = 16 }; /* at most; a power of two */

enum { LOAD_CLASSES = 128 };

/* See balance.cuh. Of the blocks of the grid: */
typedef struct shares {
    int32_t load[SM90_MAX_BLOCKS];   /* work so far, of which only the differences matter */
    uint16_t place[SM90_MAX_BLOCKS]; /* in the round: by load, least first */
    alignas(16) uint32_t class_sizes[LOAD_CLASSES];
} shares_t;

/* See ragged.cuh. Of entries of the batch that follow each other: */
typedef struct entries {
    uint32_t end[warp_threads]; /* after the last share of the entry's tiles */
    int32_t len_q[warp_threads];
    int32_t len_k[warp_threads];
} entries_t;

/* Behind the tiles. full: TMA has brought the tile. empty: no consumer needs it any more. */
typedef struct block_state {
    uint64_t q_full[MOST_Q_PLACES][SM90_MOST_CONSUMERS]; /* of each of q_parts */
    uint64_t q_empty[MOST_Q_PLACES][SM90_MOST_CONSUMERS];
    uint64_t k_full[MOST_K_STAGES];
    uint64_t k_empty[MOST_K_STAGES];
    uint64_t v_full[MOST_V_STAGES];
    uint64_t v_empty[MOST_V_STAGES];
    uint64_t v_landed[MOST_V_STAGES]; /* a block of V that a mask cuts, before it is looked over */
    uint64_t o_staged[SM90_MOST_CONSUMERS];
    uint64_t o_left; /* the last tile's O has left its place */
    uint64_t assigned[TILES_AHEAD];
    uint64_t taken[TILES_AHEAD];
    alignas(16) uint32_t assignments[TILES_AHEAD][ASSIGNMENT_WORDS]; /* assignment_of<C> */
    int32_t values_hidden[TILES_AHEAD];   /* of each assignment: see hidden_values.cuh */
    uint32_t staged[SM90_MOST_CONSUMERS]; /* see carrier.cuh */
    shares_t shares;
    entries_t entries;
    int64_t lse_head_stride;          /* with varlen: as flash_lse_head_stride() says */
    uint32_t failed[SM90_NOTES / 32]; /* see note_of() */
} block_state_t;
static_assert(sizeof(block_state_t) <= SM90_STATE_BYTES, "behind the tiles");

extern __shared__ __align__(SM90_TILE_ALIGNMENT)
unsigned char shared_memory[];

template <flash_config_t C> static __device__ __forceinline__ block_state_t &block_state() {
    return *(block_state_t *)(shared_memory + sm90_shared_bytes(&C) - SM90_STATE_BYTES);
}

/* Which of the bits of `failed` says that the fixed reference did not do in a round. A block may
 * have more rounds than bits: tiles that share a failed one's are done again too. */
static __device__ __forceinline__ int32_t note_of(int32_t round) {
    return round % SM90_NOTES;
}

template <flash_config_t C> static __device__ __forceinline__ uint32_t q_tile(int place) {
    return shared_address(shared_memory) + place * q_bytes<C>;
}

template <flash_config_t C> static __device__ __forceinline__ uint32_t k_tile(int stage) {
    return q_tile<C>(q_places<C>) + stage * kv_bytes<C>;
}

template <flash_config_t C> static __device__ __forceinline__ uint32_t v_tile(int stage) {
    return k_tile<C>(k_stages<C> + stage);
}

/* A place in a ring of stages, and the parity of the barriers' phase there. */
typedef struct ring {
    int32_t stage;
    uint32_t parity;
} ring_t;

template <int STAGES> static __device__ __forceinline__ void step(ring_t &ring) {
    if (++ring.stage == STAGES) {
        ring.stage = 0;
        ring.parity ^= 1;
    }
}

/* Named barriers; 0 is everyone's. */
enum { TURN_BARRIER = 1 /* and on, one a consumer */ };

static __device__ __forceinline__ void wait_full(const uint64_t &barrier, uint32_t parity) {
    mbarrier_wait(shared_address(&barrier), parity);
}

/* Consumers arrive warp by warp, so that no warp's reads are still to come. */
static __device__ __forceinline__ void release_if(bool done, const uint64_t &barrier) {
    mbarrier_arrive_once_if(shared_address(&barrier), done);
}

static __device__ __forceinline__ void release(const uint64_t &barrier) {
    release_if(true, barrier);
}

/* All threads must pass __syncthreads() before any of them uses the state. */
template <flash_config_t C>
static __device__ __forceinline__ void initialize_block_state(const flash_params_t &p) {
    block_state_t &state = block_state<C>();
    constexpr int consumer_warps = consumers<C> * warpgroup_warps;
    constexpr int reader_warps = consumer_warps + 2 + has_mask<C>;
    if (threadIdx.x == 0) {
        for (int place = 0; place < q_places<C>; ++place) {
            for (int part = 0; part < q_parts<C>; ++part) {
                mbarrier_init(shared_address(&state.q_full[place][part]), 1);
                mbarrier_init(shared_address(&state.q_empty[place][part]),
                              place_of_o<C> == OUTPUT_IN_Q ? 1 : consumer_warps / q_parts<C>);
            }
        }
        for (int i = 0; i < consumers<C>; ++i)
            mbarrier_init(shared_address(&state.o_staged[i]), warpgroup_warps);
        mbarrier_init(shared_address(&state.o_left), 1);
        for (int i = 0; i < k_stages<C>; ++i) {
            mbarrier_init(shared_address(&state.k_full[i]), 1);
            mbarrier_init(shared_address(&state.k_empty[i]), consumer_warps);
        }
        for (int i = 0; i < v_stages<C>; ++i) {
            mbarrier_init(shared_address(&state.v_full[i]), 1);
            mbarrier_init(shared_address(&state.v_landed[i]), 1);
            mbarrier_init(shared_address(&state.v_empty[i]), consumer_warps);
        }
        for (int i = 0; i < TILES_AHEAD; ++i) {
            mbarrier_init(shared_address(&state.assigned[i]), 1);
            mbarrier_init(shared_address(&state.taken[i]), reader_warps);
        }
        mbarrier_init_fence();
        if (has_varlen<C>)
            state.lse_head_stride = flash_lse_head_stride(&p);
    }
    for (int i = threadIdx.x; i < SM90_NOTES / 32; i += block_threads<C>)
        state.failed[i] = 0;
}

#endif
