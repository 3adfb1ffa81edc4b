/*
 * Keys of e4m3 land as bytes and become fp16 before they are multiplied, as in SM80_MLA
 * (mla/convert.cuh): a thread converts what it has itself copied. One stage of K and one of V are
 * enough: of V a warp multiplies only the columns that it converts, and K is not read any more when
 * the scores of a step are complete.
 *
 * In the round of step r, when a warp has multiplied by V of step r - 1, it converts K of step
 * r + 1 and V of step r. These two land together, and n_stages such pairs are on their way.
 */
#ifndef FLASH_KERNELS_SM80_WIDE_CONVERT_CUH
#define FLASH_KERNELS_SM80_WIDE_CONVERT_CUH

#include "sm80/mla/block.cuh"
#include "sm80/mla/convert.cuh"

template <flash_config_t C> constexpr int pair_bytes = key_tensors<C> *landing_bytes<C>;

/* A thread knows this of the pairs of landings, of which it converts the oldest next. */
typedef struct landing_pairs {
    uint32_t first;
    uint32_t oldest;
    int32_t ids[2]; /* of the pages of the lane's keys in the pair that is copied next */
} landing_pairs_t;

/* Starts to copy a tensor's step that begins with a key, and loads the ids of the next one. */
template <flash_config_t C, key_tensor T>
static __device__ __forceinline__ void copy_of_pair(uint32_t landing, int32_t &id,
                                                    const sm80_decode_params_t &params,
                                                    const block_facts<C> &facts, int32_t step_key) {
    const key_source_t &source = tensor_source<T>(facts);
    const int32_t end = facts.walk.end;
    copy_step<C, T>(landing + T * landing_bytes<C>, source, params, step_key, end, id);
    id = fetch_lane_id<C>(params, source, step_key + C.B_c, end);
}

/* Starts to copy the pair of the round whose scores are those of the step that begins with a key.
 */
template <flash_config_t C>
static __device__ __forceinline__ void copy_pair(uint32_t landing, landing_pairs_t &pairs,
                                                 const sm80_decode_params_t &params,
                                                 const block_facts<C> &facts, int32_t key) {
    copy_of_pair<C, TENSOR_K>(landing, pairs.ids[TENSOR_K], params, facts, key + C.B_c);
    copy_of_pair<C, TENSOR_V>(landing, pairs.ids[TENSOR_V], params, facts, key);
    async_copy_commit();
}

/* Starts to copy the first pairs: that of the round before the first one has no V. */
template <flash_config_t C>
static __device__ __forceinline__ void fill_pairs(landing_pairs_t &pairs,
                                                  const sm80_decode_params_t &params,
                                                  const block_facts<C> &facts) {
    const key_walk_t &walk = facts.walk;
    pairs.oldest = pairs.first;
    pairs.ids[TENSOR_K] =
        fetch_lane_id<C>(params, tensor_source<TENSOR_K>(facts), walk.begin, walk.end);
    pairs.ids[TENSOR_V] =
        fetch_lane_id<C>(params, tensor_source<TENSOR_V>(facts), walk.begin, walk.end);
    copy_of_pair<C, TENSOR_K>(pairs.first, pairs.ids[TENSOR_K], params, facts, walk.begin);
    async_copy_commit();
#pragma unroll
    for (int i = 1; i < C.n_stages; ++i)
        copy_pair<C>(pairs.first + i * pair_bytes<C>, pairs, params, facts,
                     walk.begin + (i - 1) * C.B_c);
}

/* Converts the oldest pair, of the round whose scores are those of the step that begins with `key`,
 * and starts to copy the one that takes its place. rings: the stage of K; HAS_V: it is not the
 * round before the first one. */
template <flash_config_t C, bool HAS_V>
static __device__ __forceinline__ void
convert_pair_of_tensors(uint32_t rings, landing_pairs_t &pairs, const sm80_decode_params_t &params,
                        const block_facts<C> &facts, int32_t key) {
    constexpr uint32_t last = (C.n_stages - 1) * pair_bytes<C>;
    async_copy_wait_all_but<C.n_stages - 1>();
    __syncwarp();
    convert_landing<C>(rings, pairs.oldest);
    if constexpr (HAS_V)
        convert_landing<C>(rings + ring_bytes<C>, pairs.oldest + landing_bytes<C>);
    copy_pair<C>(pairs.oldest, pairs, params, facts, key + C.n_stages * C.B_c);
    pairs.oldest = pairs.oldest == pairs.first + last ? pairs.first : pairs.oldest + pair_bytes<C>;
}

#endif
