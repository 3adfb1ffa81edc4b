/*
 * This file says which steps a warp takes: every n-th of the piece, but with bias none whose keys a
 * mask of blocks hides from all rows of the block. Their keys are neither read nor multiplied.
 *
 * The lanes look at 32 of the warp's steps at once. Each has rows of its own, as in add_biases(),
 * and looks at four steps:
 *
 *     lane    0  1  2  3  | 4  5  6  7  | ...    lanes with the same lane % 4 have the same rows
 *     steps   0 ... 3     | 4 ... 7     | ...
 *
 * The warp loads n_stages steps ahead, so that it keeps the numbers of as many.
 */
#ifndef FLASH_KERNELS_SM80_DECODE_SHOWN_STEPS_CUH
#define FLASH_KERNELS_SM80_DECODE_SHOWN_STEPS_CUH

#include "sm80/decode/bias.cuh"
#include "sm80/decode/load.cuh"

/* The keys of a warp's steps: those of step i begin at first_key + i * keys. */
typedef struct step_range {
    int32_t first_key;
    int32_t keys;
    int32_t key_end; /* of the piece */
} step_range_t;

static __device__ __forceinline__ int32_t key_of_step(const step_range_t &range, int32_t step) {
    return range.first_key + step * range.keys;
}

/* The warp's way through its steps. Without bias it takes each of them. */
template <flash_config_t C, bool HAS_BIAS = has_bias<C>> struct step_walk {
    int32_t key; /* the first one of the step that is computed next */
    int32_t step_keys;
};

template <flash_config_t C> struct step_walk<C, true> {
    step_range_t range;
    int32_t loaded[C.n_stages]; /* steps in the ring, the oldest first; -1: none */
    int32_t next;               /* that is loaded next; -1: none */
    int32_t group;              /* the first of the 32 steps that were looked at last */
    uint32_t shown;             /* a bit for each of them that comes after `next` */
};

/* Says whether the lane's rows may see a key of a step. Their sequence is the same, and so are
 * their columns; keys that the mask does not cover are visible. A step whose blocks are bits of two
 * words, which is rare, is not looked at. */
template <flash_config_t C>
static __device__ __forceinline__ bool may_show_step(const flash_bias_t &bias,
                                                     const row_biases<C> &rows,
                                                     const step_range_t &range, int32_t step) {
    const int32_t first_key = rows.of[0][0].first_key;
    const int32_t begin = key_of_step(range, step) - first_key; /* columns of keys that exist */
    const int32_t end = min(begin + C.B_c, range.key_end - first_key);
    const bool is_covered = begin >= 0 && begin < end && end <= bias.n_keys;
    const uint32_t keys = (uint32_t)bias.block.keys;
    const uint32_t first = (is_covered ? (uint32_t)begin : 0) / keys;
    const uint32_t last = (is_covered ? (uint32_t)end - 1 : 0) / keys;
    const bool is_asked = is_covered && first / 32 == last / 32;
    const uint32_t bits = ~0u << first % 32 & ~0u >> (31 - last % 32);
    const uint32_t *const words = static_cast<const uint32_t *>(bias.mask) + first / 32;
    uint32_t shown = 0;
#pragma unroll
    for (int n = 0; n < row_groups<C>; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j)
            shown |= is_asked ? __ldg(words + rows.of[n][j].at) : 0;
    return !is_asked || (shown & bits) != 0;
}

/* Returns a bit for each of the 32 steps from this one on that is shown. The words of all of them
 * are on their way together. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t find_shown_steps(const flash_bias_t &bias,
                                                            const row_biases<C> &rows,
                                                            const step_range_t &range,
                                                            int32_t first) {
    const bool may_hide = bias.mask != NULL && bias.kind == FLASH_MASK_BLOCKS;
    const int32_t own = first + threadIdx.x % DECODE_WARP_THREADS / 4 * 4;
    bool shown[4] = {true, true, true, true};
    if (may_hide)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            shown[i] = may_show_step<C>(bias, rows, range, own + i);
    uint32_t steps = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const bool exists = key_of_step(range, own + i) < range.key_end;
        uint32_t lanes = __ballot_sync(0xffffffffu, shown[i] && exists);
        lanes |= lanes >> 1;
        steps |= ((lanes | lanes >> 2) & 0x11111111u) << i;
    }
    return steps;
}

/* Finds the next step to load. */
template <flash_config_t C>
static __device__ __forceinline__ void find_next_step(step_walk<C> &walk, const flash_bias_t &bias,
                                                      const row_biases<C> &rows) {
#pragma unroll 1
    while (walk.shown == 0) {
        walk.group += 32;
        walk.next = -1;
        if (key_of_step(walk.range, walk.group) >= walk.range.key_end)
            return;
        walk.shown = find_shown_steps<C>(bias, rows, walk.range, walk.group);
    }
    walk.next = walk.group + __ffs((int)walk.shown) - 1;
    walk.shown &= walk.shown - 1;
}

/* Moves the stream on from the step `from` to the next one to load. */
template <flash_config_t C>
static __device__ __forceinline__ void follow_walk(kv_stream_t &stream, const step_walk<C> &walk,
                                                   int32_t from,
                                                   const sm80_decode_params_t &params) {
    if (walk.next < 0)
        stream.left = -1;
    else if (walk.next > from)
        skip_steps<C>(stream, walk.next - from, params);
}

/* Begins the walk, and moves the stream to its first step. */
template <flash_config_t C>
static __device__ __forceinline__ step_walk<C>
begin_walk(kv_stream_t &stream, const sm80_decode_params_t &params, const decode_block_t &block,
           const warp_part_t &part, const row_biases<C> &rows) {
    const int32_t first_key = block.key_begin + part.number * C.B_c, keys = part.count * C.B_c;
    if constexpr (has_bias<C>) {
        step_walk<C> walk = {{first_key, keys, block.key_end}, {}, -1, -32, 0};
        find_next_step<C>(walk, params.attention.bias, rows);
        follow_walk<C>(stream, walk, 0, params);
        return walk;
    } else {
        return {first_key, keys};
    }
}

/* Goes on when K and V of the next step are being loaded. */
template <flash_config_t C>
static __device__ __forceinline__ void pass_loaded(step_walk<C> &walk, kv_stream_t &stream,
                                                   const sm80_decode_params_t &params,
                                                   const row_biases<C> &rows) {
    if constexpr (has_bias<C>) {
        const int32_t step = walk.next;
#pragma unroll
        for (int i = 0; i + 1 < C.n_stages; ++i)
            walk.loaded[i] = walk.loaded[i + 1];
        walk.loaded[C.n_stages - 1] = step;
        if (step < 0)
            return;
        find_next_step<C>(walk, params.attention.bias, rows);
        follow_walk<C>(stream, walk, step + 1, params);
    }
}

/* Goes on when a step is computed, and the one that takes its place in the ring is being loaded. */
template <flash_config_t C>
static __device__ __forceinline__ void pass_computed(step_walk<C> &walk, kv_stream_t &stream,
                                                     const sm80_decode_params_t &params,
                                                     const row_biases<C> &rows) {
    if constexpr (has_bias<C>)
        pass_loaded<C>(walk, stream, params, rows);
    else
        walk.key += walk.step_keys;
}

/* Returns the first key of the step that is computed next; at least the piece's end if there is
 * none. */
template <flash_config_t C>
static __device__ __forceinline__ int32_t key_to_compute(const step_walk<C> &walk) {
    if constexpr (has_bias<C>)
        return walk.loaded[0] < 0 ? walk.range.key_end : key_of_step(walk.range, walk.loaded[0]);
    else
        return walk.key;
}

#endif
