/*
 * Where products are of e4m3, a block of V lands beside its stage, and two warps of the producer
 * transpose it into the stage: wgmma takes 8-bit operands only with their contraction, the keys,
 * side by side.
 *
 * ldmatrix.trans takes pairs of bytes for elements: a thread gets two neighbouring columns of two
 * neighbouring keys, from each of four matrices of eight keys. The bytes of one column from two
 * matrices are a word, whose keys are 2t, 2t + 1, 2t + 8 and 2t + 9 of sixteen, with t = lane % 4.
 * That is the order in which fragments of P have them (fp8/products.cuh).
 */
#ifndef FLASH_KERNELS_SM90_DECODE_TRANSPOSE_CUH
#define FLASH_KERNELS_SM90_DECODE_TRANSPOSE_CUH

#include "common/ptx/ldmatrix.cuh"
#include "sm90/decode/barriers.cuh"
#include "sm90/decode/walk.cuh"
#include "sm90/ptx/stmatrix.cuh"

/* Returns where a block of V lands, as a stage of which it has the last bytes. */
template <flash_config_t C> static __device__ __forceinline__ uint32_t v_landing(int stage) {
    static_assert(v_stages<C> == C.n_stages, "room for as many");
    return v_tile<C>(v_stages<C> + stage);
}

/* Returns the barrier at which the warps arrive that have read a block that landed. */
template <flash_config_t C>
static __device__ __forceinline__ const uint64_t &v_landing_empty(int stage) {
    static_assert(v_stages<C> <= ASSIGNMENT_SLOTS, "there are no assignments here");
    return block_state<C>().taken[stage];
}

enum { KEYS_TOGETHER = 32 /* that a warp transposes at a time */ };

/* Returns where a chunk of a row of 128 bytes lies: of the columns of a key that has landed, or of
 * the keys of a column. */
static __device__ __forceinline__ uint32_t row_chunk(uint32_t rows, int row, int chunk) {
    return rows + row * SM90_PANEL_BYTES + (chunk ^ row % 8) * SM90_CHUNK_BYTES;
}

/* Transposes the warp's keys of a block. */
template <flash_config_t C>
static __device__ __forceinline__ void transpose_block(uint32_t from, uint32_t to, int warp) {
    static_assert(C.B_c == SM90_PANEL_BYTES && d_head_v<C> <= SM90_PANEL_BYTES, "one panel");
    const int lane = threadIdx.x % warp_threads;
    /* Each half of the warp takes another one of a thread's two columns first: the rows of a
     * matrix to be stored are then in eight different places of their lines. */
    const int first_odd = lane / 16, of_matrix = lane % 8;
    const int in_chunk = of_matrix * 2 + (lane / 8 % 2 ^ of_matrix / 4); /* column */
    const uint32_t even = 0x6420, odd = 0x7531;
    const uint32_t first = first_odd ? odd : even, second = first_odd ? even : odd;
#pragma unroll 1
    for (int keys = warp; keys < C.B_c / KEYS_TOGETHER; keys += TRANSPOSE_WARPS)
#pragma unroll
        for (int i = 0; i < d_head_v<C> / SM90_CHUNK_BYTES; ++i) {
            uint32_t m[4];
            ldmatrix_x4_trans(m, row_chunk(from, keys * KEYS_TOGETHER + lane, i));
            stmatrix_x4(row_chunk(to, i * SM90_CHUNK_BYTES + in_chunk, keys * 2 + lane / 16),
                        __byte_perm(m[0], m[1], first), __byte_perm(m[0], m[1], second),
                        __byte_perm(m[2], m[3], first), __byte_perm(m[2], m[3], second));
        }
}

/* Transposes V of all blocks of the walk: this is the warp's whole work. NaNs stay: consumers
 * sanitise V. */
template <flash_config_t C>
static __device__ __forceinline__ void transpose_walk(const key_walk_t &walk, int warp) {
    const block_state_t &state = block_state<C>();
    ring_t ring = {0, 0};
#pragma unroll 1
    for (int32_t n = 0; n < walk.blocks; ++n) {
        const int stage = ring.stage;
        wait_full(state.v_landed[stage], ring.parity);
        wait_full(state.v_empty[stage], ring.parity ^ 1);
        transpose_block<C>(v_landing<C>(stage) + landing_offset<C, TENSOR_V>, v_tile<C>(stage),
                           warp);
        async_proxy_fence();
        __syncwarp();
        release(v_landing_empty<C>(stage));
        release(state.v_full[stage]);
        step<v_stages<C>>(ring);
        if (n >= whole_blocks(walk)) {
            meet_converter<C>(); /* before consumers look at V */
            meet_converter<C>(); /* and after */
        }
    }
}

#endif
