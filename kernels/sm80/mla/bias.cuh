/*
 * Kernels with bias add ALiBi and masks to the scores of a step. A warp does so for its own tiles,
 * once, and leaves them in place of the first part of the scores: there it finds them if P is
 * computed again, and the other warps do if maxima are raised.
 *
 * Keys in holes of a page table are hidden then, too.
 *
 * What rows have of the bias lies in shared memory. All words or numbers of the mask are loaded
 * together, since each would be waited for.
 */
#ifndef FLASH_KERNELS_SM80_MLA_BIAS_CUH
#define FLASH_KERNELS_SM80_MLA_BIAS_CUH

#include "common/bias.cuh"
#include "common/block_bits.cuh"
#include "common/page_holes.cuh"
#include "sm80/mla/key_source.cuh"
#include "sm80/mla/queries.cuh"
#include "sm80/mla/walk.cuh"

/* This joins the scores of the warp's own tiles, in the exponent of e; -infinity hides a key. */
template <flash_config_t C> struct own_biases { float of[own_tiles<C>][4]; };

/* The units of scores: the first as they are until a bias joins them, the last as the softmax sees
 * them. */
template <flash_config_t C> struct step_units { score_unit_t of[has_bias<C> ? 2 : 1]; };

template <flash_config_t C>
static __device__ __forceinline__ void find_units(step_units<C> &units, const flash_params_t &p) {
    units.of[0] = score_unit_of<true>(p);
    if constexpr (has_bias<C>)
        units.of[1] = unit_after_bias(p.bias, units.of[0]);
}

/* half: which of the thread's two rows. */
template <flash_config_t C>
static __device__ __forceinline__ const flash_bias_row_t &bias_row(const mla_exchange<C> &shared,
                                                                   int half) {
    return shared.biases.of[score_row<C>() + 8 * half];
}

/* Calls f(n, i, offset) for each of the thread's scores: element i of tile n, which has row i / 2;
 * offset: in keys, from the thread's first one. */
template <flash_config_t C, typename F>
static __device__ __forceinline__ void for_each_own(const F &f) {
#pragma unroll
    for (int n = 0; n < own_tiles<C>; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            f(n, i, n * 8 + i % 2);
}

/* ---- A mask's bits and numbers. column: of the mask, at the thread's first key; keys that the
 * mask does not cover are visible. ---- */

/* Loads word i of a row of bits. */
static __device__ __forceinline__ uint32_t load_mask_word(const uint32_t *row, int32_t i,
                                                          int32_t n_keys) {
    const int32_t covered = n_keys - 32 * i;
    const uint32_t word = i >= 0 && covered > 0 ? __ldg(row + i) : 0xffffffffu;
    return covered < 32 ? word | 0xffffffffu << max(covered, 0) : word;
}

/* Returns a bit for each of the 32 keys of a row from `column` on: 0 for one that is hidden. */
static __device__ __forceinline__ uint32_t load_shown_keys(const flash_bias_t &bias,
                                                           const flash_bias_row_t &row,
                                                           int32_t column) {
    if (bias.kind == FLASH_MASK_BLOCKS)
        return shown_by_blocks(bias, row.at, column);
    const uint32_t *const words = static_cast<const uint32_t *>(bias.mask) + row.at;
    return __funnelshift_r(load_mask_word(words, column >> 5, bias.n_keys),
                           load_mask_word(words, (column >> 5) + 1, bias.n_keys), column);
}

template <flash_config_t C>
static __device__ __forceinline__ void take_bits(own_biases<C> &biases, const flash_bias_t &bias,
                                                 const mla_exchange<C> &shared, int32_t column) {
    static_assert(own_tiles<C> * 8 <= 32, "a thread's keys are among 32");
    uint32_t shown[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
        shown[half] = load_shown_keys(bias, bias_row<C>(shared, half), column);
    for_each_own<C>([&](int n, int i, int32_t offset) {
        biases.of[n][i] = shown[i / 2] >> offset & 1 ? 0.0f : -INFINITY;
    });
}

template <flash_config_t C, int DTYPE>
static __device__ __forceinline__ void take_numbers(own_biases<C> &biases, const flash_bias_t &bias,
                                                    const mla_exchange<C> &shared, int32_t column) {
    typedef typename dtype_traits<DTYPE>::element element;
    const element *rows[2];
    element numbers[own_tiles<C>][4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half)
        rows[half] = static_cast<const element *>(bias.mask) + bias_row<C>(shared, half).at +
                     column * bias.stride_key;
    for_each_own<C>([&](int n, int i, int32_t offset) {
        if ((uint32_t)(column + offset) < (uint32_t)bias.n_keys)
            numbers[n][i] = rows[i / 2][offset * bias.stride_key];
    });
    for_each_own<C>([&](int n, int i, int32_t) {
        biases.of[n][i] = dtype_traits<DTYPE>::to_fp32(numbers[n][i]);
    });
}

/* Multiplies numbers by the factors of their rows. */
template <flash_config_t C>
static __device__ __forceinline__ void scale_numbers(own_biases<C> &biases,
                                                     const mla_exchange<C> &shared) {
    for_each_own<C>([&](int n, int i, int32_t) {
        biases.of[n][i] = flash_scaled_number(biases.of[n][i], bias_row<C>(shared, i / 2).factor);
    });
}

template <flash_config_t C>
static __device__ __forceinline__ void take_mask(own_biases<C> &biases, const flash_bias_t &bias,
                                                 const mla_exchange<C> &shared, int32_t column) {
    DTYPES_KNOWN(7); /* numbers are of no other type */
    if (bias.kind == FLASH_MASK_BITS || bias.kind == FLASH_MASK_BLOCKS)
        take_bits<C>(biases, bias, shared, column);
    else if (bias.dtype == FLASH_DTYPE_FP16)
        take_numbers<C, FLASH_DTYPE_FP16>(biases, bias, shared, column);
    else if (bias.dtype == FLASH_DTYPE_BF16)
        take_numbers<C, FLASH_DTYPE_BF16>(biases, bias, shared, column);
    else
        take_numbers<C, FLASH_DTYPE_FP32>(biases, bias, shared, column);
    if (bias.head_scale != NULL)
        scale_numbers<C>(biases, shared);
}

/* ---- ALiBi and masks ---- */

/* Adds the bias to the capped scores of the warp's tiles from the first one on; they are in the
 * exponent of 2 then. */
template <flash_config_t C>
static __device__ __forceinline__ void
add_biases(float (&s)[own_tiles<C>][4], const flash_bias_t &bias, const mla_exchange<C> &shared,
           int32_t step_key, int first, float log2_unit) {
    const int32_t first_key = step_key + first * 8 + lane_number() % 4 * 2;
    const int32_t column = first_key - bias_row<C>(shared, 0).first_key;
    own_biases<C> biases = {};
    if (bias.mask != NULL && column > -C.B_c && column < bias.n_keys)
        take_mask<C>(biases, bias, shared, column);
    if (bias.alibi_slopes != NULL)
        for_each_own<C>([&](int n, int i, int32_t offset) {
            biases.of[n][i] += flash_bias_alibi(&bias_row<C>(shared, i / 2), first_key + offset);
        });
    for_each_own<C>(
        [&](int n, int i, int32_t) { s[n][i] = add_bias(s[n][i], log2_unit, biases.of[n][i]); });
}

/* Hides the keys of the warp's tiles from the first one on that lie in holes, if the call has any.
 */
template <flash_config_t C>
static __device__ __forceinline__ void
hide_holes(float (&s)[own_tiles<C>][4], const sm80_decode_params_t &params,
           const key_source_t &source, const key_walk_t &walk, int32_t step_key, int first) {
    if constexpr (hides_holes<C>) {
        static_assert(C.B_c <= 32, "a lane looks up a key");
        if (!params.attention.bias.has_page_holes)
            return;
        const hole_ids_t ids = {source.ids, walk.end - 1};
        const uint32_t hidden =
            find_holes(ids, step_key,
                       [&](int32_t key) { return flash_divide(key, params.by_page_size); }) >>
            (first * 8 + lane_number() % 4 * 2);
        for_each_own<C>([&](int n, int i, int32_t offset) {
            if (hidden >> offset & 1)
                s[n][i] = -INFINITY;
        });
    }
}

/* ---- Kept scores ---- */

/* Stores the warp's finished scores, from tile `first` on, over the partial sums of scores there,
 * which no warp reads any more. */
template <flash_config_t C>
static __device__ __forceinline__ void keep_scores(mla_exchange<C> &shared,
                                                   const float (&s)[own_tiles<C>][4], int first) {
    const int group = score_group<C>(), lane = lane_number();
#pragma unroll
    for (int n = 0; n < own_tiles<C>; ++n)
        shared.scores[group][0][first + n][lane] = {s[n][0], s[n][1], s[n][2], s[n][3]};
}

template <flash_config_t C, int TILES>
static __device__ __forceinline__ void take_kept_scores(float (&s)[TILES][4],
                                                        const mla_exchange<C> &shared, int first) {
    const int group = score_group<C>(), lane = lane_number();
#pragma unroll
    for (int n = 0; n < TILES; ++n) {
        const float4 x = shared.scores[group][0][first + n][lane];
        s[n][0] = x.x, s[n][1] = x.y, s[n][2] = x.z, s[n][3] = x.w;
    }
}

#endif
