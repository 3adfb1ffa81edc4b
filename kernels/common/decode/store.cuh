/*
 * Merged rows of O, with their LSE, are stored to global memory four columns at a time.
 */
#ifndef FLASH_KERNELS_COMMON_DECODE_STORE_CUH
#define FLASH_KERNELS_COMMON_DECODE_STORE_CUH

#include "common/decode/rows.cuh"
#include "common/ptx/convert.cuh"
#include "common/scale.h"
#include "common/score_unit.cuh"

/* Returns the weight of sums with maximum `max`, relative to a reference maximum. */
static __device__ __forceinline__ float relative_weight(float max, float reference,
                                                        float log2_unit) {
    return exp2_approx((max - (reference == -INFINITY ? 0.0f : reference)) * log2_unit);
}

static __device__ __forceinline__ float4 add_weighted(float4 sum, float4 x, float weight) {
    return {fmaf(x.x, weight, sum.x), fmaf(x.y, weight, sum.y), fmaf(x.z, weight, sum.z),
            fmaf(x.w, weight, sum.w)};
}

/* The places of a row of O and its LSE, as offsets in elements. */
typedef struct output_row {
    int64_t o;
    int64_t lse;
    float v_scale;
} output_row_t;

static __device__ __forceinline__ output_row_t find_output_row(const decode_params_t &params,
                                                               const decode_block_t &block,
                                                               int32_t head_kv,
                                                               const head_row_t &row) {
    const flash_params_t &p = params.attention;
    const int32_t head = head_kv * p.group + row.head;
    return {row_offset(p, p.o_stride, block, head_kv, row),
            flash_lse_index(&p, &block.sequence, block.piece.batch_index, head, row.query),
            flash_scale_at(&p.v_scale, block.piece.batch_index, head_kv)};
}

template <int DTYPE> static __device__ __forceinline__ void store_pairs(char *o, float4 x) {
    const uint2 pairs = {convert_pair<DTYPE>(x.x, x.y), convert_pair<DTYPE>(x.z, x.w)};
    if ((uintptr_t)o % sizeof pairs == 0) {
        *(uint2 *)o = pairs;
        return;
    }
    uint16_t *element = (uint16_t *)o;
    element[0] = (uint16_t)pairs.x;
    element[1] = (uint16_t)(pairs.x >> 16);
    element[2] = (uint16_t)pairs.y;
    element[3] = (uint16_t)(pairs.y >> 16);
}

/* Stores four elements from element `at` of O on. */
static __device__ __forceinline__ void store_four(void *o, int64_t at, float4 x, int32_t dtype) {
    char *to = (char *)o + at * dtype_size(dtype);
    DTYPES_KNOWN(7); /* only K and V are of 8 bits */
    if (dtype == FLASH_DTYPE_FP16)
        store_pairs<FLASH_DTYPE_FP16>(to, x);
    else if (dtype == FLASH_DTYPE_BF16)
        store_pairs<FLASH_DTYPE_BF16>(to, x);
    else
        for (int i = 0; i < 4; ++i)
            ((float *)to)[i] = (&x.x)[i];
}

/* Returns the factor by which the sums of a row become O; 0 for one that saw no key, whatever the
 * sink is. */
static __device__ __forceinline__ float output_factor(const output_row_t &to,
                                                      const decode_weight_t &weight, float sink,
                                                      const score_unit_t &unit) {
    const float with_sink = weight.sum + sink_weight(sink, weight.max * unit.log2);
    return weight.sum == 0.0f ? 0.0f : to.v_scale / with_sink;
}

/* Stores the LSE of a row over all of its keys, if the call has one. */
static __device__ __forceinline__ void store_lse(const decode_params_t &params,
                                                 const output_row_t &to,
                                                 const decode_weight_t &weight,
                                                 const score_unit_t &unit) {
    if (params.attention.lse)
        params.attention.lse[to.lse] =
            weight.sum == 0.0f ? -INFINITY : weight.max * unit.natural + logf(weight.sum);
}

/* Stores four columns of a row over all of its keys. sum: of P V. */
static __device__ __forceinline__ void store_row(const decode_params_t &params,
                                                 const output_row_t &to, int column, float4 sum,
                                                 const decode_weight_t &weight, float sink,
                                                 const score_unit_t &unit) {
    const flash_params_t &p = params.attention;
    const float factor = output_factor(to, weight, sink, unit);
    const float4 o = {sum.x * factor, sum.y * factor, sum.z * factor, sum.w * factor};
    if (column < p.d_head_v)
        store_four(p.o, to.o + column, o, p.o_dtype);
    if (column == 0)
        store_lse(params, to, weight, unit);
}

/* Stores four columns of a row of the block over the keys of its piece: of O, with its LSE, if that
 * is the whole sequence, else of the partial result. head: of the block's K/V heads. COLUMNS: of a
 * row of partial_o. */
template <flash_config_t C, int COLUMNS>
static __device__ __forceinline__ void
store_piece_row(const decode_params_t &params, const decode_block_t &block, int head, int row,
                int column, float4 sum, const decode_weight_t &weight, float sink,
                const score_unit_t &unit) {
    if (is_whole(block.piece)) {
        const head_row_t at = find_row(params, block.row_begin + row);
        const output_row_t to = find_output_row(params, block, block.first_head_kv + head, at);
        store_row(params, to, column, sum, weight, sink, unit);
        return;
    }
    const int64_t partial = (find_slot<C>(params) * params.heads_per_block + head) * C.B_r + row;
    *(float4 *)(params.partial_o + partial * COLUMNS + column) = sum;
    if (column == 0)
        params.partial_weights[partial] = weight;
}

#endif
