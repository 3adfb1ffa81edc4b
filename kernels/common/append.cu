/*
 * The append kernels serve every CUDA family: they write new tokens of K and V into a cache, and
 * turn them and Q to their positions. A block takes a token, or part of one, of K and V or of Q;
 * its threads take units of two vectors of a row (append_params.h), so that both elements of each
 * pair are one thread's, and Q can be turned in place.
 *
 * What a thread needs lies at the end of chains of loads: length, page, place, and length,
 * position, angles. So a thread asks for its elements before it follows them.
 */
#include "common/append_elements.cuh"
#include "common/append_latent.cuh"
#include "common/append_params.h"

static_assert(element_vector<FLASH_DTYPE_BF16>::count == APPEND_VECTOR, "the host counts on it");

/* ---- Units ---- */

/* One of a token's units. */
typedef struct append_unit {
    int32_t part;   /* APPEND_... */
    int32_t head;   /* of the part */
    int32_t first;  /* column of the first vector */
    int32_t second; /* column of the second vector; d_head or more: there is none */
    int32_t pair;   /* number of the first pair, if the unit turns */
    bool turns;
} append_unit_t;

template <int N>
static __device__ __forceinline__ append_unit_t find_unit(const append_work_t &work, bool is_q,
                                                          int32_t number) {
    const append_params_t &p = work.params;
    const int32_t row = (int32_t)((uint32_t)number / (uint32_t)work.row_units);
    const int32_t n_heads = p.parts[APPEND_K].n_heads;
    const bool is_v = !is_q && row >= n_heads;
    append_unit_t unit;
    unit.part = is_q ? APPEND_Q : is_v ? APPEND_V : APPEND_K;
    unit.head = is_v ? row - n_heads : row;
    unit.pair = N * (number - row * work.row_units);
    unit.turns = !is_v && unit.pair < p.rotary.n_pairs;
    const bool has_halves = unit.turns && !p.rotary.is_interleaved;
    unit.first = has_halves ? unit.pair : 2 * unit.pair;
    unit.second = has_halves ? unit.pair + p.rotary.n_pairs : unit.first + N;
    return unit;
}

/* The elements of a unit. */
template <typename Elements> struct unit_elements {
    Elements first;
    Elements second;
};

template <typename Elements>
static __device__ __forceinline__ void load_unit(const append_params_t &p,
                                                 const append_unit_t &unit, int64_t token_at,
                                                 unit_elements<Elements> &elements) {
    const append_part_t &part = p.parts[unit.part];
    const int size = dtype_size(part.from_dtype);
    const char *from = static_cast<const char *>(part.from) +
                       (token_at + unit.head * part.from_stride.head) * size;
    elements.first.load(from + (int64_t)unit.first * size, size);
    if (unit.second < p.d_head)
        elements.second.load(from + (int64_t)unit.second * size, size);
}

template <typename Elements>
static __device__ __forceinline__ void store_unit(const append_params_t &p,
                                                  const append_unit_t &unit, int64_t token_at,
                                                  const unit_elements<Elements> &elements) {
    const append_part_t &part = p.parts[unit.part];
    const int size = dtype_size(part.to_dtype);
    char *to = static_cast<char *>(part.to) + (token_at + unit.head * part.to_stride.head) * size;
    elements.first.store(to + (int64_t)unit.first * size, size);
    if (unit.second < p.d_head)
        elements.second.store(to + (int64_t)unit.second * size, size);
}

/* ---- Turning ---- */

/* Cosines and sines of a unit's pairs; those of the same columns of all heads are the same. */
template <typename Elements> struct unit_angles {
    int32_t pair; /* number of the first pair; -1: none */
    Elements cosine;
    Elements sine;
};

template <typename Elements>
static __device__ __forceinline__ void load_angles(const append_rotary_t &rotary, int64_t row_at,
                                                   int32_t pair, unit_angles<Elements> &angles) {
    const int size = dtype_size(rotary.dtype);
    const int64_t at = (row_at + pair) * size;
    if (angles.pair == pair)
        return;
    angles.pair = pair;
    angles.cosine.load(static_cast<const char *>(rotary.cos) + at, size);
    angles.sine.load(static_cast<const char *>(rotary.sin) + at, size);
}

/* Turns a pair. CPUs round each product and sum, too, so that both give the same bits. */
static __device__ __forceinline__ void turn_pair(float &x, float &y, float cosine, float sine) {
    const float turned_x = __fsub_rn(__fmul_rn(x, cosine), __fmul_rn(y, sine));
    const float turned_y = __fadd_rn(__fmul_rn(x, sine), __fmul_rn(y, cosine));
    x = turned_x;
    y = turned_y;
}

/* Turns the elements of a unit. */
template <int N, typename Elements>
static __device__ __forceinline__ void turn(const append_rotary_t &rotary,
                                            const unit_angles<Elements> &angles, float (&first)[N],
                                            float (&second)[N]) {
    float cosine[N], sine[N];
    angles.cosine.widen(rotary.dtype, cosine);
    angles.sine.widen(rotary.dtype, sine);
    if constexpr (N > 1) {
        if (rotary.is_interleaved) {
#pragma unroll
            for (int i = 0; i < N; i += 2) {
                turn_pair(first[i], first[i + 1], cosine[i / 2], sine[i / 2]);
                turn_pair(second[i], second[i + 1], cosine[(N + i) / 2], sine[(N + i) / 2]);
            }
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        turn_pair(first[i], second[i], cosine[i], sine[i]);
}

static __device__ __forceinline__ int64_t find_angles(const append_rotary_t &rotary,
                                                      const append_token_t &token, bool is_q) {
    const int64_t position = append_position(&rotary, &token, is_q && rotary.q_at_start);
    const int64_t last = rotary.n_positions - 1;
    return max(min(position, last), (int64_t)0) * rotary.stride_position;
}

/* ---- Conversion ---- */

template <int N, typename Elements>
static __device__ __forceinline__ void narrow(const append_part_t &part, float inverse_scale,
                                              float (&x)[N], Elements &elements) {
    if (part.to_dtype == FLASH_DTYPE_E4M3) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = __fmul_rn(x[i], inverse_scale);
    }
    elements.narrow(part.to_dtype, x);
}

/* Turns the elements of a unit if they turn, and gives them the type of where they go. */
template <typename Elements>
static __device__ __forceinline__ void
convert_unit(const append_params_t &p, const append_unit_t &unit, int32_t batch_index,
             int32_t entry, const unit_angles<Elements> &angles,
             unit_elements<Elements> &elements) {
    const append_part_t &part = p.parts[unit.part];
    float x[Elements::count], y[Elements::count];
    if (!unit.turns && part.from_dtype == part.to_dtype)
        return;
    elements.first.widen(part.from_dtype, x);
    elements.second.widen(part.from_dtype, y);
    if (unit.turns)
        turn(p.rotary, angles, x, y);
    const float inverse_scale = __fdiv_rn(1.0f, append_scale(&part, batch_index, entry, unit.head));
    narrow(part, inverse_scale, x, elements.first);
    narrow(part, inverse_scale, y, elements.second);
}

/* ---- Tokens ---- */

/* A target is the place that a token goes to. */
typedef struct append_target {
    int32_t entry; /* of the cache; negative: the token has no place */
    int64_t at;    /* offset of its first head */
} append_target_t;

static __device__ __forceinline__ append_target_t find_target(const append_params_t &p,
                                                              int32_t part_number,
                                                              const append_token_t &token) {
    const append_part_t &part = p.parts[part_number];
    if (part_number == APPEND_Q)
        return {0, append_token_offset(&p.tokens_q, &part.to_stride, &token)};
    const append_place_t place = append_place(&p, part.table, &token);
    return {(int32_t)place.entry,
            place.entry * part.to_stride.batch + place.at * part.to_stride.seq};
}

/* Does a block's part of a token. */
template <typename Elements>
static __device__ __forceinline__ void append_token_part(const append_work_t &work, bool is_q,
                                                         uint32_t block) {
    constexpr int n = Elements::count;
    const append_params_t &p = work.params;
    const append_share_t &share = is_q ? work.share_q : work.share_new;
    const append_tokens_t &tokens = is_q ? p.tokens_q : p.tokens_new;
    const uint32_t number = share.token_blocks == 1 ? block : block / (uint32_t)share.token_blocks;
    const int32_t step = share.token_blocks * APPEND_THREADS;
    int32_t next = (int32_t)(block - number * share.token_blocks) * APPEND_THREADS + threadIdx.x;
    const append_token_t token = append_token(&tokens, p.batch, number);
    unit_elements<Elements> elements;
    unit_angles<Elements> angles;
    angles.pair = -1;
    if (!token.exists || next >= share.token_units)
        return;
    int64_t angles_at = 0;
    append_target_t target = {0, 0};
    int32_t placed_part = -1; /* K and V may have places of their own */
#pragma unroll 1
    do {
        const append_unit_t unit = find_unit<n>(work, is_q, next);
        load_unit(p, unit, append_token_offset(&tokens, &p.parts[unit.part].from_stride, &token),
                  elements);
        if (unit.turns) {
            if (angles.pair < 0)
                angles_at = find_angles(p.rotary, token, is_q);
            load_angles(p.rotary, angles_at, unit.pair, angles);
        }
        if (unit.part != placed_part)
            target = find_target(p, unit.part, token);
        placed_part = unit.part;
        convert_unit(p, unit, token.batch_index, target.entry, angles, elements);
        if (target.entry >= 0)
            store_unit(p, unit, target.at, elements);
        next += step;
    } while (next < share.token_units);
}

/* Writes the lengths that the sequences have then. */
static __device__ __forceinline__ void write_lengths(const append_params_t &p) {
    if (!p.seqused_k_out)
        return;
    for (int64_t b = (int64_t)blockIdx.x * APPEND_THREADS + threadIdx.x; b < p.batch;
         b += (int64_t)gridDim.x * APPEND_THREADS)
        p.seqused_k_out[b] = append_length_after(&p, (int32_t)b);
}

template <typename Elements>
static __device__ __forceinline__ void append_blocks(const append_work_t &work) {
    const uint32_t n_new = work.share_new.n_blocks, n_blocks = n_new + work.share_q.n_blocks;
    for (uint32_t block = blockIdx.x; block < n_blocks; block += gridDim.x) {
        const bool is_q = block >= n_new;
        append_token_part<Elements>(work, is_q, is_q ? block - n_new : block);
    }
    write_lengths(work.params);
}

extern "C" __global__ void __launch_bounds__(APPEND_THREADS, APPEND_BLOCKS)
    flash_append_fp16(const __grid_constant__ append_work_t work) {
    append_blocks<element_vector<FLASH_DTYPE_FP16>>(work);
}

extern "C" __global__ void __launch_bounds__(APPEND_THREADS, APPEND_BLOCKS)
    flash_append_bf16(const __grid_constant__ append_work_t work) {
    append_blocks<element_vector<FLASH_DTYPE_BF16>>(work);
}

extern "C" __global__ void __launch_bounds__(APPEND_THREADS, APPEND_BLOCKS)
    flash_append_elements(const __grid_constant__ append_work_t work) {
    append_blocks<single_element>(work);
}

/* ---- Latent tokens ---- */

static_assert(latent_threads == APPEND_THREADS, "a block has a token");

extern "C" __global__ void __launch_bounds__(APPEND_THREADS)
    flash_append_latent(const __grid_constant__ append_work_t work) {
    const append_params_t &p = work.params;
    const append_part_t &part = p.parts[APPEND_K];
    const uint32_t n_heads = (uint32_t)part.n_heads;
    for (uint32_t block = blockIdx.x; block < work.share_new.n_blocks; block += gridDim.x) {
        const uint32_t number = block / n_heads, head = block - number * n_heads;
        const append_token_t token = append_token(&p.tokens_new, p.batch, number);
        const int64_t at = append_token_offset(&p.tokens_new, &part.from_stride, &token) +
                           head * part.from_stride.head;
        const append_target_t target =
            token.exists ? find_target(p, APPEND_K, token) : append_target_t{-1, 0};
        if (target.entry >= 0)
            append_latent_token(
                static_cast<const char *>(part.from) + at * dtype_size(part.from_dtype),
                part.from_dtype,
                static_cast<char *>(part.to) + target.at + head * part.to_stride.head);
    }
    write_lengths(p);
}
