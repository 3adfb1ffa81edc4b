/*
 * O and LSE are stored from registers. For O of 16 bits, the quad that holds a row exchanges words,
 * so that each thread has chunks of eight columns next to each other; for fp32 its threads have two
 * columns each, which together are a sector of 32 bytes.
 */
#ifndef FLASH_KERNELS_SM90_STORE_DIRECT_CUH
#define FLASH_KERNELS_SM90_STORE_DIRECT_CUH

#include "common/ptx/convert.cuh"
#include "common/ptx/opaque.cuh"
#include "sm90/block_state.cuh"
#include "sm90/mma/consumer.cuh"
#include "sm90/ptx/predicated.cuh"
#include "sm90/store/non_finite.cuh"

/* Returns the scale of V that was converted for the tile that the consumer is at; 1 for other
 * types. */
template <flash_config_t C>
static __device__ __forceinline__ float output_scale(const consumer_state<C> &consumer) {
    if constexpr (has_scales<C> && converts<C>)
        return *(volatile float *)&conversion_state<C>().v_scale[consumer.assignments.stage];
    else
        return 1.0f;
}

/* Loads the sink of a query head; -infinity if there are none. There is no branch: see
 * ptx/predicated.cuh. */
static __device__ __forceinline__ float load_sink(const flash_params_t &p, int32_t head) {
    return global_load_if(p.sinks != nullptr, p.sinks + head, -INFINITY);
}

/* Divides O by the sums with the sink, and multiplies it by V's scale; a row that saw no key
 * becomes 0, whatever the sink is. The sum with the sink is opaque: otherwise the compiler computes
 * it within a branch, for rows that saw a key (ptx/predicated.cuh). */
template <flash_config_t C>
static __device__ __forceinline__ void
normalize_output(output_tile<C> &o, const softmax_state_t &state, const softmax_units<C> &unit,
                 float sink, float v_scale) {
    rescale_t inverse;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float sum = opaque(sum_with_sink<C>(state, unit, half, sink));
        inverse.factor[half] = state.sum[half] == 0.0f ? 0.0f : reciprocal_approx(sum) * v_scale;
    }
    rescale_output<C>(o, inverse);
}

/* Rounds two elements of O to its type; an O of fp32 to bf16, which failed() looks at. */
template <flash_config_t C>
static __device__ __forceinline__ uint32_t round_pair(float low, float high, bool fp16) {
    if constexpr (has_other_q_and_o<C>) {
        const uint32_t as_fp16 = convert_pair<FLASH_DTYPE_FP16>(low, high);
        const uint32_t as_bf16 = convert_pair<FLASH_DTYPE_BF16>(low, high);
        return fp16 ? as_fp16 : as_bf16;
    } else {
        return convert_pair<C.dtype>(low, high);
    }
}

/* Rounds O to its type. There is no branch: the next tile's QK^T is under way. */
template <flash_config_t C>
static __device__ __forceinline__ void
round_output(rounded_output<C> &rounded, const output_tile<C> &o, const flash_params_t &p) {
    const bool fp16 = p.o_dtype == FLASH_DTYPE_FP16;
#pragma unroll
    for (int i = 0; i < output_registers<C> / 2; ++i)
        rounded.w[i] = round_pair<C>(o.o[2 * i], o.o[2 * i + 1], fp16);
}

/* Transposes the words of the quad: its thread k gives word i to thread i, and gets word k of
 * each. */
static __device__ __forceinline__ void transpose_in_quad(uint32_t (&w)[4]) {
    const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? w[i] : w[i + 1], 1);
        w[i] = odd ? other : w[i];
        w[i + 1] = odd ? w[i + 1] : other;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? w[i] : w[i + 2], 2);
        w[i] = upper ? other : w[i];
        w[i + 2] = upper ? w[i + 2] : other;
    }
}

/* Returns the O of a query, in the head of the warp's rows, of such elements. */
template <flash_config_t C, typename element>
static __device__ __forceinline__ element *output_row(const flash_params_t &p,
                                                      const tile_of<C> &tile, int64_t row) {
    return (element *)p.o + tile.batch_index * p.o_stride.batch +
           head_of_warp<C>(p, tile) * p.o_stride.head +
           (sequence_of<C>(p, tile).q_begin + row) * p.o_stride.seq;
}

/* Returns the first column of the thread's chunk i. */
template <flash_config_t C> static __device__ __forceinline__ int chunk_column(int i) {
    return (4 * i + threadIdx.x % 4) * o_chunk_elements<C>;
}

template <flash_config_t C>
static __device__ __forceinline__ void store_row(o_element_bits<C> *row, int32_t columns, int half,
                                                 const rounded_output<C> &o) {
#pragma unroll
    for (int i = 0; i < d_head_v<C> / 32; ++i) {
        uint32_t w[4];
#pragma unroll
        for (int j = 0; j < 4; ++j)
            w[j] = o.w[8 * i + 2 * j + half];
        transpose_in_quad(w);
        global_store_if(chunk_column<C>(i) < columns, row + chunk_column<C>(i),
                        uint4{w[0], w[1], w[2], w[3]});
    }
}

/* Stores O in 16 bits, if it is wanted. */
template <flash_config_t C>
static __device__ __forceinline__ void store_output(const flash_params_t &p, const tile_of<C> &tile,
                                                    const rounded_output<C> &o, bool wanted) {
    const int32_t row = tile.row_begin + row_query<C>(p, 0);
    const int32_t len_q = sequence_of<C>(p, tile).len_q;
    o_element_bits<C> *data = output_row<C, o_element_bits<C>>(p, tile, row);
    store_row<C>(data, wanted && row < len_q ? p.d_head_v : 0, 0, o);
    store_row<C>(data + 8 * p.o_stride.seq, wanted && row + 8 < len_q ? p.d_head_v : 0, 1, o);
}

/* Stores the first `columns` columns of one of the thread's rows. */
template <flash_config_t C>
static __device__ __forceinline__ void store_fp32_row(float *row, bool wanted, int32_t columns,
                                                      int half, const output_tile<C> &o) {
#pragma unroll
    for (int first = 0; first < d_head_v<C>; first += 32) {
        float2 pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = first / 2 + 4 * i + 2 * half;
            pairs[i] = {o.o[at], o.o[at + 1]};
        }
        const int column = first + tile_column();
        global_store_pairs_if(wanted, columns - column, row + column, pairs);
    }
}

/* Stores O, normalised, in fp32, if it is wanted. */
template <flash_config_t C>
static __device__ __forceinline__ void store_fp32_output(const flash_params_t &p,
                                                         const tile_of<C> &tile,
                                                         const output_tile<C> &o, bool wanted) {
    const int32_t row = tile.row_begin + row_query<C>(p, 0);
    const int32_t len_q = sequence_of<C>(p, tile).len_q;
    float *data = output_row<C, float>(p, tile, row);
    store_fp32_row<C>(data, wanted, row < len_q ? p.d_head_v : 0, 0, o);
    store_fp32_row<C>(data + 8 * p.o_stride.seq, wanted, row + 8 < len_q ? p.d_head_v : 0, 1, o);
}

/* Completes the warp's rows, which it has just written, where V was sanitised (non_finite.cuh).
 * element: the type of O's elements. */
template <flash_config_t C, typename element>
static __device__ __forceinline__ void complete_output(const flash_params_t &p,
                                                       const tile_of<C> &tile) {
    const int32_t first = tile.row_begin + warp_query<C>(p);
    __syncwarp();
#pragma unroll 1
    for (int32_t row = first; row < min(first + 16, sequence_of<C>(p, tile).len_q); ++row)
        add_non_finite_v<C>(p, tile, row, output_row<C, element>(p, tile, row));
}

/* Returns the index in LSE of a query of the tile's sequence. There is no branch: see
 * ptx/predicated.cuh. */
template <flash_config_t C>
static __device__ __forceinline__ int64_t lse_place(const flash_params_t &p, const tile_of<C> &tile,
                                                    int32_t query) {
    int64_t head_stride = p.lse_stride.head;
    int64_t token = query;
    if constexpr (has_varlen<C>) {
        head_stride = block_state<C>().lse_head_stride;
        token += tile.q_begin;
    }
    return tile.batch_index * p.lse_stride.batch + head_of_warp<C>(p, tile) * head_stride +
           token * p.lse_stride.seq;
}

/* Stores LSE. Two threads of each quad store a row each: see row_lse(). */
template <flash_config_t C>
static __device__ __forceinline__ void store_lse(const flash_params_t &p, const tile_of<C> &tile,
                                                 float lse) {
    const int half = threadIdx.x % 4;
    const int32_t row = tile.row_begin + row_query<C>(p, half);
    const int32_t len_q = sequence_of<C>(p, tile).len_q;
    global_store_if(p.lse && half < 2 && row < len_q, p.lse + lse_place<C>(p, tile, row), lse);
}

#endif
