/*
 * The append kernels serve every CUDA family: they write new tokens of K and V into a cache, and
 * turn them and Q to their positions. A thread takes units of two vectors of a row (append.h), so
 * that both elements of each pair are its own, and Q can be turned in place.
 */
#include "common/append.h"
#include "common/append_elements.cuh"

/* A unit of the call. */
typedef struct append_unit {
    int64_t token;  /* its number among the tokens of K and V, or of Q */
    int32_t part;   /* APPEND_... */
    int32_t head;   /* of the part */
    int32_t in_row; /* its number in the row */
} append_unit_t;

static __device__ __forceinline__ append_unit_t find_unit(const append_work_t &work,
                                                          int64_t number) {
    const bool is_q = number >= work.n_units_new;
    const uint64_t in_part = (uint64_t)(is_q ? number - work.n_units_new : number);
    const uint64_t token_units = is_q ? work.token_units_q : work.token_units_new;
    const uint64_t token = in_part / token_units; /* 32 bits are divided as such, quickly */
    const uint32_t in_token = (uint32_t)(in_part - token * token_units);
    const int32_t row = (int32_t)(in_token / (uint32_t)work.row_units);
    const int32_t n_heads = work.params.parts[APPEND_K].n_heads;
    append_unit_t unit = {(int64_t)token, APPEND_Q, row, (int32_t)in_token - row * work.row_units};
    if (!is_q) {
        unit.part = row < n_heads ? APPEND_K : APPEND_V;
        unit.head = row < n_heads ? row : row - n_heads;
    }
    return unit;
}

/* The columns of a unit's two vectors. */
typedef struct unit_columns {
    int32_t first;
    int32_t second;
    int32_t pair; /* number of the first pair */
    bool turns;
} unit_columns_t;

template <int N>
static __device__ __forceinline__ unit_columns_t find_columns(const append_rotary_t &rotary,
                                                              bool part_turns, int32_t in_row) {
    const int32_t pair = N * in_row;
    const bool turns = part_turns && pair < rotary.n_pairs;
    if (turns && !rotary.is_interleaved)
        return {pair, pair + rotary.n_pairs, pair, true};
    return {2 * pair, 2 * pair + N, pair, turns};
}

template <int N>
static __device__ __forceinline__ void load_angles(const append_rotary_t &rotary, const void *table,
                                                   int64_t at, float (&x)[N]) {
    raw_elements<N> raw;
    load_raw<N>(table, at, dtype_size(rotary.dtype), raw);
    widen(raw, rotary.dtype, x);
}

/* Turns a pair. CPUs round each product and sum, too, so that both give the same bits. */
static __device__ __forceinline__ void turn_pair(float &x, float &y, float cosine, float sine) {
    const float turned_x = __fsub_rn(__fmul_rn(x, cosine), __fmul_rn(y, sine));
    const float turned_y = __fadd_rn(__fmul_rn(x, sine), __fmul_rn(y, cosine));
    x = turned_x;
    y = turned_y;
}

/* Turns the elements of a unit. */
template <int N>
static __device__ __forceinline__ void turn(const append_rotary_t &rotary,
                                            const append_token_t &token, bool stays_at_start,
                                            int32_t pair, float (&first)[N], float (&second)[N]) {
    int64_t position = append_position(&rotary, &token, stays_at_start);
    position = max(min(position, (int64_t)rotary.n_positions - 1), (int64_t)0);
    float cosine[N], sine[N];
    load_angles<N>(rotary, rotary.cos, position * rotary.stride_position + pair, cosine);
    load_angles<N>(rotary, rotary.sin, position * rotary.stride_position + pair, sine);
    if (!rotary.is_interleaved || N == 1) {
#pragma unroll
        for (int i = 0; i < N; i++)
            turn_pair(first[i], second[i], cosine[i], sine[i]);
        return;
    }
    if constexpr (N > 1) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            turn_pair(first[2 * i], first[2 * i + 1], cosine[i], sine[i]);
            turn_pair(second[2 * i], second[2 * i + 1], cosine[N / 2 + i], sine[N / 2 + i]);
        }
    }
}

template <int N>
static __device__ __forceinline__ void scale_and_narrow(float (&x)[N], const append_part_t &part,
                                                        float inverse_scale, raw_elements<N> &raw) {
    if (part.to_dtype == FLASH_DTYPE_E4M3) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = __fmul_rn(x[i], inverse_scale);
    }
    narrow(x, part.to_dtype, raw);
}

static __device__ __forceinline__ float inverse_scale_of(const append_part_t &part,
                                                         int32_t batch_index, int32_t head) {
    const flash_scale_t &scale = part.scale;
    if (!scale.data)
        return 1.0f;
    const int64_t at = batch_index * scale.stride_batch + head * scale.stride_head;
    return __fdiv_rn(1.0f, scale.data[at]);
}

/* Returns the offset of a token's first head in `to`; negative: the token is not written. */
static __device__ __forceinline__ int64_t find_destination(const append_params_t &p,
                                                           const append_part_t &part, bool is_q,
                                                           const append_token_t &token) {
    if (is_q)
        return append_token_offset(&p.tokens_q, &part.to_stride, &token);
    const append_place_t place = append_place(&p, part.table, &token);
    return place.entry < 0 ? -1
                           : place.entry * part.to_stride.batch + place.at * part.to_stride.seq;
}

template <int N>
static __device__ __forceinline__ void append_unit(const append_params_t &p,
                                                   const append_unit_t &unit) {
    const append_part_t &part = p.parts[unit.part];
    const bool is_q = unit.part == APPEND_Q;
    const append_tokens_t &tokens = is_q ? p.tokens_q : p.tokens_new;
    const append_token_t token = append_token(&tokens, p.batch, unit.token);
    const unit_columns_t columns = find_columns<N>(p.rotary, part.turns, unit.in_row);
    const bool has_second = columns.second < p.d_head;
    if (!token.exists)
        return;
    const int64_t from =
        append_token_offset(&tokens, &part.from_stride, &token) + unit.head * part.from_stride.head;
    const int from_size = dtype_size(part.from_dtype);
    raw_elements<N> first, second;
    load_raw<N>(part.from, from + columns.first, from_size, first);
    if (has_second)
        load_raw<N>(part.from, from + columns.second, from_size, second);
    int64_t to = find_destination(p, part, is_q, token);
    if (to < 0)
        return;
    to += unit.head * part.to_stride.head;
    if (columns.turns || part.from_dtype != part.to_dtype) {
        float x[N], y[N];
        widen(first, part.from_dtype, x);
        if (has_second)
            widen(second, part.from_dtype, y);
        if (columns.turns)
            turn<N>(p.rotary, token, is_q && p.rotary.q_at_start, columns.pair, x, y);
        const float inverse = inverse_scale_of(part, token.batch_index, unit.head);
        scale_and_narrow<N>(x, part, inverse, first);
        if (has_second)
            scale_and_narrow<N>(y, part, inverse, second);
    }
    const int to_size = dtype_size(part.to_dtype);
    store_raw<N>(part.to, to + columns.first, to_size, first);
    if (has_second)
        store_raw<N>(part.to, to + columns.second, to_size, second);
}

template <int N> static __device__ __forceinline__ void append_share(const append_work_t &work) {
    const int64_t thread = (int64_t)blockIdx.x * APPEND_THREADS + threadIdx.x;
    const int64_t n_threads = (int64_t)gridDim.x * APPEND_THREADS;
    for (int64_t number = thread; number < work.n_units; number += n_threads)
        append_unit<N>(work.params, find_unit(work, number));
    if (work.params.seqused_k_out)
        for (int64_t b = thread; b < work.params.batch; b += n_threads)
            work.params.seqused_k_out[b] = append_length_after(&work.params, (int32_t)b);
}

extern "C" __global__ void __launch_bounds__(APPEND_THREADS)
    flash_append_vectors(const __grid_constant__ append_work_t work) {
    append_share<APPEND_VECTOR>(work);
}

extern "C" __global__ void __launch_bounds__(APPEND_THREADS)
    flash_append_elements(const __grid_constant__ append_work_t work) {
    append_share<1>(work);
}
