/*
 * A block has in shared memory the tiles of Q, K and V, and behind them the barriers that hand
 * these from the warps that load to the consumers and back, and what roles tell each other.
 *
 *     0                                                                sm90_shared_bytes()
 *     | Q 0 | (Q 1) | K 0 | K 1 | ... | V 0 | V 1 | ... | (O)    | block_state_t    |
 *      \___________/ \_______________/ \_______________/ \______/ \________________/
 *       q_slots,      k_stages,         v_stages,         B_r      SM90_STATE_BYTES
 *       B_r rows each B_c rows each     B_c rows each     rows
 *
 * What is in brackets is there if it fits. A tile lies in panels of 64 columns, 128 bytes per row,
 * swizzled as TMA writes them. Where O has no slot of its own it leaves through Q's slot or through
 * stages of V (derive.cuh).
 *
 * K and V each have a ring of stages, and each stage two barriers:
 *
 *     KV-load warp                                     consumers
 *       wait for empty[s], parity ^ 1                    wait for full[s], parity
 *       arrive at full[s], announce a block's bytes      multiply by stage s
 *       start TMA into stage s; full[s] counts bytes     each warp arrives at empty[s]
 *       s = s + 1                                        s = s + 1
 *
 * After the last stage both sides begin again at stage 0 with the other parity. For the n-th use of
 * a stage:
 *
 *   empty  counts the consumers' warps, each of which arrives when it has read the stage for the
 *          last time. Complete: the stage is free, and may be loaded. Before the first use it
 *          counts as complete, since a wait for the parity before the first one passes.
 *   full   counts one arrival and the bytes of a whole block. The phase stays open until both are
 *          there, in whichever order they come. Complete: the consumers may read the stage.
 *
 * Neither barrier can run a phase ahead: a stage is loaded again only after `empty`, and those who
 * make `empty` complete have waited for `full` before.
 *
 * A block of V that a mask cuts takes one step more: its bytes are counted by `v_landed`, for which
 * only the sanitise warp waits; `v_full` then counts the arrival of that warp, once V is fit to be
 * multiplied (load/sanitise_v.cuh).
 *
 * Q has `q_full` and `q_empty` in the same way, a pair for each part that is loaded by itself. O on
 * its way out: the warps of each consumer arrive at `o_staged` when they have left its rows in
 * shared memory, and the Q-load/O-store warp arrives at `o_left`, or for Q's slot at `q_empty`,
 * when TMA has read them.
 *
 * Where K and V are converted, the bytes of every block of them are counted by `k_landed` and
 * `v_landed`, those of Q by `q_landed`, and the converter's warps arrive at `k_full` and `v_full`,
 * and its threads at `q_full`, when they are done with a block.
 *
 * `assigned` and `taken` are full and empty of the ring of assignments, by which the scheduler
 * announces tiles (schedule/assignments.cuh). All warps that read assignments arrive at `taken`.
 */
#ifndef FLASH_KERNELS_SM90_BLOCK_STATE_CUH
#define FLASH_KERNELS_SM90_BLOCK_STATE_CUH

#include "common/ptx/shared_memory.cuh"
#include "sm90/ptx/barrier.cuh"
#include "sm90/ptx/warpgroup.cuh"
#include "sm90/schedule/state.cuh"
#include "sm90/tile.cuh"

enum { MAX_K_STAGES = 4, MAX_V_STAGES = 5, MAX_Q_SLOTS = 2, ASSIGNMENT_SLOTS = 4 };

enum { ASSIGNMENT_WORDS = 16 }; /* at most; a power of two */

enum { MAX_CONVERTED_ROWS = 128 }; /* of a tile of Q */

enum { HOLES_WORDS = 4 /* of at most 128 keys */, HOLES_STAGES = 3 };

/* These bits are set for keys of a block of K that lie in holes of a page table, where it may have
 * any (load/pages.cuh). */
typedef struct block_holes {
    uint32_t words[HOLES_WORDS];
} block_holes_t;

typedef struct block_state {
    uint64_t q_full[MAX_Q_SLOTS][SM90_MAX_CONSUMERS]; /* of each of q_parts */
    uint64_t q_empty[MAX_Q_SLOTS][SM90_MAX_CONSUMERS];
    uint64_t k_full[MAX_K_STAGES];
    uint64_t k_empty[MAX_K_STAGES];
    uint64_t v_full[MAX_V_STAGES];
    uint64_t v_empty[MAX_V_STAGES];
    uint64_t v_landed[MAX_V_STAGES];
    uint64_t o_staged[SM90_MAX_CONSUMERS];
    uint64_t o_left;
    uint64_t assigned[ASSIGNMENT_SLOTS];
    uint64_t taken[ASSIGNMENT_SLOTS];
    alignas(16) uint32_t assignments[ASSIGNMENT_SLOTS][ASSIGNMENT_WORDS]; /* assignment_of<C> */
    int32_t k_blocks[2][MAX_K_STAGES];     /* with bias: see shown_blocks.cuh */
    int32_t v_sanitised[ASSIGNMENT_SLOTS]; /* 1: V of that tile had infinities or NaNs */
    uint32_t staged_o[SM90_MAX_CONSUMERS]; /* address or 0: see load/q_load_o_store.cuh */
    schedule_state_t schedule;
    int64_t lse_head_stride;                 /* with varlen: as flash_lse_head_stride() says */
    uint32_t failed[SM90_FAILURE_BITS / 32]; /* see schedule/passes.cuh */
} block_state_t;
/* Behind it lie the holes of blocks in the stages of K, of decode blocks in place of assignments.
 */
static_assert(sizeof(block_state_t) + sizeof(block_holes_t[HOLES_STAGES]) <= SM90_STATE_BYTES,
              "behind the tiles");

/* This is the state of a block that converts K and V (load/convert_kv.cuh) and Q
 * (load/convert_q.cuh). */
typedef struct conversion_state : block_state_t {
    uint64_t q_landed[MAX_Q_SLOTS][SM90_MAX_CONSUMERS]; /* of each of q_parts */
    uint64_t k_landed[MAX_K_STAGES];
    float v_scale[ASSIGNMENT_SLOTS];      /* of the tile in that slot */
    float k_scale[2][SM90_MAX_CONSUMERS]; /* of a tile, in turn (q_turn()), for each of q_parts */
    int8_t q_exponent[2][MAX_CONVERTED_ROWS]; /* of the power of two in each row of its Q */
} conversion_state_t;
static_assert(sizeof(conversion_state_t) + sizeof(block_holes_t[HOLES_STAGES]) <=
                  SM90_STATE_BYTES + SM90_CONVERSION_BYTES,
              "behind the tiles");

extern __shared__ __align__(SM90_TILE_ALIGNMENT)
unsigned char shared_memory[];

template <flash_config_t C> static __device__ __forceinline__ block_state_t &block_state() {
    return *(block_state_t *)(shared_memory + sm90_shared_bytes(&C) - sm90_state_bytes(&C));
}

/* Returns the words of the block of K in a stage. */
template <flash_config_t C> static __device__ __forceinline__ uint32_t *holes_of_stage(int stage) {
    static_assert(C.B_c <= 32 * HOLES_WORDS && HOLES_WORDS <= ASSIGNMENT_WORDS, "of a block");
    static_assert(k_stages<C> <= ASSIGNMENT_SLOTS, "blocks of a ring");
    if constexpr (C.arch == FLASH_ARCH_SM90_DECODE) {
        return block_state<C>().assignments[stage];
    } else {
        static_assert(k_stages<C> <= HOLES_STAGES, "blocks of a ring");
        return ((block_holes_t *)(shared_memory + sm90_shared_bytes(&C)) - HOLES_STAGES + stage)
            ->words;
    }
}

template <flash_config_t C>
static __device__ __forceinline__ conversion_state_t &conversion_state() {
    static_assert(converts<C>, "only blocks that convert have it");
    return static_cast<conversion_state_t &>(block_state<C>());
}

template <flash_config_t C> static __device__ __forceinline__ uint32_t q_tile(int slot) {
    return shared_address(shared_memory) + slot * q_bytes<C>;
}

template <flash_config_t C> static __device__ __forceinline__ uint32_t k_tile(int stage) {
    return q_tile<C>(q_slots<C>) + stage * k_bytes<C>;
}

template <flash_config_t C> static __device__ __forceinline__ uint32_t v_tile(int stage) {
    return k_tile<C>(k_stages<C>) + stage * v_bytes<C>;
}

/* A ring is walked by the stage to be used next, and the parity of the phase that its barriers are
 * then in. */
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

/* Returns which of two sets of scales and exponents belongs to the Q at the ring's next slot. Tiles
 * take the sets in turn: a consumer has read those of a tile when it waits for the next Q but
 * one. */
template <flash_config_t C> static __device__ __forceinline__ int q_turn(const ring_t &ring) {
    return q_slots<C> == 2 ? ring.stage : (int)ring.parity;
}

/* These are named barriers; number 0 is that of all threads. */
enum { TURN_BARRIER = 1 /* and on, one per consumer */ };

static __device__ __forceinline__ void wait_full(const uint64_t &barrier, uint32_t parity) {
    mbarrier_wait(shared_address(&barrier), parity);
}

/* Waits until a block of K or of V is there for wgmma. Rows of pages are written by cp.async, which
 * does not order them before what wgmma reads (load/rows.cuh). */
template <flash_config_t C>
static __device__ __forceinline__ void wait_keys(const uint64_t &barrier, uint32_t parity) {
    wait_full(barrier, parity);
    if constexpr (has_pages<C> && !converts<C>)
        async_proxy_fence();
}

/* Arrives at a barrier if `done` is true, which releases a stage or slot. Consumers arrive warp by
 * warp, so that no read of a warp is still to come. */
static __device__ __forceinline__ void release_if(bool done, const uint64_t &barrier) {
    mbarrier_arrive_once_if(shared_address(&barrier), done);
}

static __device__ __forceinline__ void release(const uint64_t &barrier) {
    release_if(true, barrier);
}

/* Initialises the block's state. All threads must pass __syncthreads() before any of them uses
 * it. */
template <flash_config_t C>
static __device__ __forceinline__ void initialize_block_state(const flash_params_t &p) {
    block_state_t &state = block_state<C>();
    constexpr int consumer_warps = consumers<C> * warpgroup_warps;
    constexpr int assignment_reader_warps =
        consumer_warps + 2 + (converts<C> ? warpgroup_warps : 0) + sanitise_warp_reads<C>;
    constexpr int filling_warps = converts<C> ? warpgroup_warps : 1;
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < q_slots<C>; ++slot) {
            for (int part = 0; part < q_parts<C>; ++part) {
                mbarrier_init(shared_address(&state.q_full[slot][part]),
                              converts<C> ? SM90_WARPGROUP_THREADS : 1);
                if constexpr (converts<C>)
                    mbarrier_init(shared_address(&conversion_state<C>().q_landed[slot][part]), 1);
                mbarrier_init(shared_address(&state.q_empty[slot][part]),
                              staging_of_o<C> == STAGED_IN_Q ? 1 : consumer_warps / q_parts<C>);
            }
        }
        for (int i = 0; i < consumers<C>; ++i)
            mbarrier_init(shared_address(&state.o_staged[i]), warpgroup_warps);
        mbarrier_init(shared_address(&state.o_left), 1);
        for (int i = 0; i < k_stages<C>; ++i) {
            mbarrier_init(shared_address(&state.k_full[i]), filling_warps);
            if constexpr (converts<C>)
                mbarrier_init(shared_address(&conversion_state<C>().k_landed[i]), 1);
            mbarrier_init(shared_address(&state.k_empty[i]), consumer_warps);
        }
        for (int i = 0; i < v_stages<C>; ++i) {
            mbarrier_init(shared_address(&state.v_full[i]), filling_warps);
            mbarrier_init(shared_address(&state.v_landed[i]), 1);
            mbarrier_init(shared_address(&state.v_empty[i]), consumer_warps);
        }
        for (int i = 0; i < ASSIGNMENT_SLOTS; ++i) {
            mbarrier_init(shared_address(&state.assigned[i]), 1);
            mbarrier_init(shared_address(&state.taken[i]), assignment_reader_warps);
        }
        mbarrier_init_fence();
        if (has_varlen<C>)
            state.lse_head_stride = flash_lse_head_stride(&p);
    }
    for (int i = threadIdx.x; i < SM90_FAILURE_BITS / 32; i += block_threads<C>)
        state.failed[i] = 0;
}

#endif
