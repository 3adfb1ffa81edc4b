/*
 * The quantising kernels serve every CUDA device: rows of a head become e4m3, with the same
 * roundings, one by one, as on CPUs (kernels/cpu/quantise_rows.c). A few threads beside each other
 * have a row, QUANTISE_COLUMNS columns each at a time.
 *
 * A scale of a head takes two passes: the first finds the largest magnitude, by atomics on its
 * bits, whose order does not matter, and the second divides. Between them the largest magnitude
 * lies in place of the scale, with its sign bit set. Means are found before, by blocks that have
 * all tokens of a few columns, so that sums have one order.
 */
#include "common/quantise.h"

#include "common/dtype.cuh"
#include "common/e4m3.h"
#include "common/ptx/e4m3_pair.cuh"
#include "common/sequence.h"

#include <cfloat>

enum {
    columns = QUANTISE_COLUMNS,
    unrolled_rows = 2, /* that a thread loads before it looks at the first */
    warp_threads = 32,
};
static constexpr uint32_t whole_warp = 0xffffffffu;

static __device__ __forceinline__ bool is_finite(float x) {
    return fabsf(x) <= FLT_MAX;
}

/* ---- Where things are ---- */

/* The tokens of a head that a block looks at. */
typedef struct head_rows {
    int32_t b;
    int32_t head;
    int32_t part; /* number of the chunk of tokens, or of columns */
    int64_t begin;
    int32_t n;
} head_rows_t;

/* Heads follow each other first, so that blocks beside each other read whole tokens. */
static __device__ __forceinline__ head_rows_t find_head(const quantise_params_t &p, int64_t item,
                                                        int32_t n_parts) {
    head_rows_t rows;
    const int64_t part = item / p.n_heads;
    rows.head = (int32_t)(item - part * p.n_heads);
    rows.b = (int32_t)(part / n_parts);
    rows.part = (int32_t)(part - (int64_t)rows.b * n_parts);
    rows.begin = p.cu_seqlens ? p.cu_seqlens[rows.b] : 0;
    rows.n = p.cu_seqlens ? (int32_t)(p.cu_seqlens[rows.b + 1] - rows.begin) : p.seqlen;
    return rows;
}

/* Leaves the tokens of the chunk. */
static __device__ __forceinline__ void cut_chunk(head_rows_t &rows) {
    const int32_t first = rows.part * QUANTISE_CHUNK;
    rows.begin += first;
    rows.n = min(max(rows.n - first, 0), (int32_t)QUANTISE_CHUNK);
}

static __device__ __forceinline__ int64_t row_at(const flash_strides_t &stride,
                                                 const head_rows_t &rows, int32_t row) {
    return rows.b * stride.batch + (rows.begin + row) * stride.seq + rows.head * stride.head;
}

static __device__ __forceinline__ const float *mean_of(const quantise_params_t &p,
                                                       const head_rows_t &rows) {
    return p.mean ? p.mean + ((int64_t)rows.b * p.n_heads + rows.head) * p.d_head : nullptr;
}

static __device__ __forceinline__ float *head_scale_at(const quantise_params_t &p,
                                                       const head_rows_t &rows) {
    const int32_t scale = rows.head / (p.n_heads / p.n_scales);
    return p.scale + (int64_t)rows.b * p.n_scales + scale;
}

static __device__ __forceinline__ bool is_first_of_scale(const quantise_params_t &p,
                                                         const head_rows_t &rows) {
    return rows.part == 0 && rows.head % (p.n_heads / p.n_scales) == 0 && threadIdx.x == 0;
}

/* ---- Elements ---- */

/* A thread's elements of a row, as they are in memory. */
template <int DTYPE> union raw_columns {
    typedef typename dtype_traits<DTYPE>::element element;
    uint4 words[columns * sizeof(element) / sizeof(uint4)];
    element elements[columns];
};

/* Loads columns of a row; those beyond the last are 0. */
template <int DTYPE, bool ALIGNED>
static __device__ __forceinline__ raw_columns<DTYPE> load_raw(const void *x, int64_t row,
                                                              int32_t first, int32_t d_head) {
    typedef typename dtype_traits<DTYPE>::element element;
    const element *from = static_cast<const element *>(x) + row + first;
    raw_columns<DTYPE> raw;
#pragma unroll
    for (int i = 0; i < int(sizeof raw.words / sizeof(uint4)); ++i)
        raw.words[i] = ALIGNED && first < d_head ? reinterpret_cast<const uint4 *>(from)[i]
                                                 : make_uint4(0, 0, 0, 0);
    if constexpr (!ALIGNED) {
#pragma unroll
        for (int i = 0; i < columns; ++i)
            if (first + i < d_head)
                raw.elements[i] = from[i];
    }
    return raw;
}

template <int DTYPE>
static __device__ __forceinline__ void widen(const raw_columns<DTYPE> &raw,
                                             float (&values)[columns]) {
#pragma unroll
    for (int i = 0; i < columns; ++i)
        values[i] = dtype_traits<DTYPE>::to_fp32(raw.elements[i]);
}

template <int DTYPE, bool ALIGNED>
static __device__ __forceinline__ void load_columns(const void *x, int64_t row, int32_t first,
                                                    int32_t d_head, float (&values)[columns]) {
    widen<DTYPE>(load_raw<DTYPE, ALIGNED>(x, row, first, d_head), values);
}

template <bool ALIGNED>
static __device__ __forceinline__ void store_codes(uint8_t *codes, int64_t row, int32_t first,
                                                   int32_t d_head, const float (&values)[columns]) {
    uint8_t *to = codes + row + first;
    uint32_t pairs[columns / 2];
#pragma unroll
    for (int i = 0; i < columns / 2; ++i)
        pairs[i] = e4m3_pair(values[2 * i], values[2 * i + 1]);
    if constexpr (ALIGNED) {
        if (first < d_head)
            *reinterpret_cast<uint2 *>(to) =
                make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
    } else {
#pragma unroll
        for (int i = 0; i < columns; ++i)
            if (first + i < d_head)
                to[i] = (uint8_t)(pairs[i / 2] >> (i % 2 * 8));
    }
}

/* ---- Values ---- */

static __device__ __forceinline__ void add_turned(float &a, float &b) {
    const float sum = __fadd_rn(a, b);
    b = __fsub_rn(a, b);
    a = sum;
}

/* Multiplies by a Hadamard matrix, as on CPUs: pairs at a distance of 1, 2, 4 columns are those of
 * one thread, then those of threads at a distance of 1, 2, 4, ... All threads of a warp are here.
 */
static __device__ __forceinline__ void turn(const quantise_params_t &p, float (&values)[columns]) {
#pragma unroll
    for (int i = 0; i < columns; ++i)
        values[i] = __fmul_rn(values[i], p.shrink);
#pragma unroll
    for (int half = 1; half < columns; half *= 2)
        if (half < p.turned)
#pragma unroll
            for (int i = 0; i < columns; ++i)
                if (i % (2 * half) < half)
                    add_turned(values[i], values[i + half]);
    for (int half = 1; half * columns < p.turned; half *= 2) {
        const float sign = (threadIdx.x & half) != 0 ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < columns; ++i) {
            const float other = __shfl_xor_sync(whole_warp, values[i], half);
            values[i] = __fmaf_rn(values[i], sign, other); /* which is one rounding of a sum */
        }
    }
}

static __device__ __forceinline__ void load_mean(const float *mean, int32_t first, int32_t d_head,
                                                 float (&values)[columns]) {
#pragma unroll
    for (int i = 0; i < columns; ++i)
        values[i] = mean && first + i < d_head ? mean[first + i] : 0.0f;
}

/* Makes what is to be quantised of elements. */
static __device__ __forceinline__ void
derive(const quantise_params_t &p, const float (&mean)[columns], float (&values)[columns]) {
    if (p.mean) {
#pragma unroll
        for (int i = 0; i < columns; ++i)
            values[i] = __fsub_rn(values[i], mean[i]);
    }
    if (p.turned > 1)
        turn(p, values);
}

static __device__ __forceinline__ bool all_finite(const float (&values)[columns]) {
    bool finite = true;
#pragma unroll
    for (int i = 0; i < columns; ++i)
        finite = finite & is_finite(values[i]);
    return finite;
}

static __device__ __forceinline__ float largest_of(const float (&values)[columns], float largest) {
    float among_all = largest;
#pragma unroll
    for (int i = 0; i < columns; ++i)
        among_all = fmaxf(among_all, fabsf(values[i])); /* which passes NaN over */
    if (among_all <= FLT_MAX)
        return among_all;
#pragma unroll
    for (int i = 0; i < columns; ++i)
        largest = is_finite(values[i]) ? fmaxf(largest, fabsf(values[i])) : largest;
    return largest;
}

/* A scale, and what divides by it quickly. */
typedef struct divisor {
    float scale;
    float inverse;
    bool is_ordinary; /* quick_quotient() serves */
} divisor_t;

static __device__ __forceinline__ divisor_t divisor_of(float scale) {
    return {scale, __fdiv_rn(1.0f, scale), scale >= 0x1p-60f};
}

/* Returns x / scale, rounded to nearest, for a quotient of 2^-11 to 448: the remainder is exact
 * then, so that one step corrects the first quotient (Markstein, "IA-64 and Elementary Functions",
 * chapter 8). Smaller quotients stay as small: their codes are 0, of their sign. */
static __device__ __forceinline__ float quick_quotient(float x, const divisor_t &by) {
    const float first = __fmul_rn(x, by.inverse);
    const float remainder = __fmaf_rn(-first, by.scale, x);
    return copysignf(__fmaf_rn(remainder, by.inverse, first), x);
}

/* Divides; what is not finite becomes NaN. */
static __device__ __forceinline__ void divide(float (&values)[columns], const divisor_t &by) {
    if (by.is_ordinary && all_finite(values)) {
#pragma unroll
        for (int i = 0; i < columns; ++i)
            values[i] = quick_quotient(values[i], by);
    } else {
#pragma unroll
        for (int i = 0; i < columns; ++i)
            values[i] = is_finite(values[i]) ? __fdiv_rn(values[i], by.scale) : NAN;
    }
}

/* ---- Rows ---- */

/* A thread's place among those of its block. */
typedef struct place {
    int32_t row;   /* the first of its rows */
    int32_t step;  /* from each of them to the next */
    int32_t first; /* column */
} place_t;

static __device__ __forceinline__ place_t find_place(int32_t lanes) {
    const int32_t row = (int32_t)threadIdx.x / lanes;
    return {row, (int32_t)blockDim.x / lanes, ((int32_t)threadIdx.x - row * lanes) * columns};
}

/* Loads a thread's columns of several of its rows; beyond the last row, those of the last. */
template <int DTYPE, bool ALIGNED>
static __device__ __forceinline__ void
load_rows(const quantise_params_t &p, const head_rows_t &rows, const place_t &place, int32_t row,
          int32_t first, float (&values)[unrolled_rows][columns]) {
#pragma unroll
    for (int i = 0; i < unrolled_rows; ++i) {
        const int32_t r = min(row + i * place.step, rows.n - 1);
        load_columns<DTYPE, ALIGNED>(p.x, row_at(p.x_stride, rows, r), first, p.d_head, values[i]);
    }
}

/* Does something with the values of each of a block's rows: visit(row, first column, values), by
 * all threads of a warp at once, also beyond the last row, with its values, and beyond the last
 * column, with values of 0. */
template <int DTYPE, bool ALIGNED, typename Visit>
static __device__ __forceinline__ void visit_rows(const quantise_params_t &p,
                                                  const head_rows_t &rows, const Visit &visit) {
    const place_t place = find_place(p.lanes);
    const int32_t piece = p.lanes * columns;
    for (int32_t first = place.first; first - place.first < p.d_head; first += piece) {
        float mean[columns];
        load_mean(mean_of(p, rows), first, p.d_head, mean);
        for (int32_t row = place.row; row - place.row < rows.n; row += unrolled_rows * place.step) {
            float values[unrolled_rows][columns];
            load_rows<DTYPE, ALIGNED>(p, rows, place, row, first, values);
#pragma unroll
            for (int i = 0; i < unrolled_rows; ++i) {
                derive(p, mean, values[i]);
                visit(row + i * place.step, first, values[i]);
            }
        }
    }
}

/* ---- A scale of a head ---- */

/* Returns a head's scale, of what is in its place. */
static __device__ __forceinline__ float read_scale(const float *scale) {
    const uint32_t bits = *reinterpret_cast<const volatile uint32_t *>(scale);
    const bool is_largest = bits == 0 || bits >> 31;
    const float number = __uint_as_float(bits & 0x7fffffffu);
    return is_largest ? quantise_scale(number) : number;
}

/* Adds a thread's largest magnitude to that of its head. */
static __device__ __forceinline__ void join_largest(float largest, float *scale) {
    const uint32_t bits = __reduce_max_sync(whole_warp, __float_as_uint(largest));
    if (threadIdx.x % warp_threads == 0 && bits != 0)
        atomicMax(reinterpret_cast<uint32_t *>(scale), bits | 0x80000000u);
}

template <int DTYPE, bool ALIGNED>
static __device__ __forceinline__ void find_largest(const quantise_params_t &p, int64_t item) {
    head_rows_t rows = find_head(p, p.n_items - 1 - item, p.n_chunks);
    float largest = 0;
    cut_chunk(rows);
    visit_rows<DTYPE, ALIGNED>(p, rows, [&](int32_t, int32_t, const float(&values)[columns]) {
        largest = largest_of(values, largest);
    });
    join_largest(largest, head_scale_at(p, rows));
}

template <int DTYPE, bool ALIGNED>
static __device__ __forceinline__ void quantise_head(const quantise_params_t &p, int64_t item) {
    head_rows_t rows = find_head(p, item, p.n_chunks);
    float *of_head = head_scale_at(p, rows);
    const divisor_t by = divisor_of(read_scale(of_head));
    cut_chunk(rows);
    visit_rows<DTYPE, ALIGNED>(p, rows, [&](int32_t row, int32_t first, float(&values)[columns]) {
        divide(values, by);
        if (row < rows.n)
            store_codes<ALIGNED>(p.codes, row_at(p.codes_stride, rows, row), first, p.d_head,
                                 values);
    });
    if (is_first_of_scale(p, rows))
        *of_head = by.scale;
}

/* ---- A scale of a token ---- */

/* Returns the largest magnitude among the threads of a row. */
static __device__ __forceinline__ float largest_of_row(float largest, int32_t lanes) {
    for (int distance = 1; distance < lanes; distance *= 2)
        largest = fmaxf(largest, __shfl_xor_sync(whole_warp, largest, distance));
    return largest;
}

/* Quantises rows that are one piece, which their threads have loaded. */
template <int DTYPE, bool ALIGNED>
static __device__ __forceinline__ void quantise_token(const quantise_params_t &p,
                                                      const head_rows_t &rows, int32_t row,
                                                      int32_t first, float (&values)[columns]) {
    const float scale = quantise_scale(largest_of_row(largest_of(values, 0), p.lanes));
    const int64_t token = rows.begin + row + (p.cu_seqlens ? 0 : (int64_t)rows.b * p.seqlen);
    divide(values, divisor_of(scale));
    if (row >= rows.n)
        return;
    store_codes<ALIGNED>(p.codes, row_at(p.codes_stride, rows, row), first, p.d_head, values);
    if (first == 0)
        p.scale[token * p.n_heads + rows.head] = scale;
}

/* Loads and derives a piece of a row. */
template <int DTYPE, bool ALIGNED>
static __device__ __forceinline__ void load_piece(const quantise_params_t &p,
                                                  const head_rows_t &rows, int32_t row,
                                                  int32_t first, float (&values)[columns]) {
    float mean[columns];
    const int32_t r = min(row, rows.n - 1);
    load_columns<DTYPE, ALIGNED>(p.x, row_at(p.x_stride, rows, r), first, p.d_head, values);
    load_mean(mean_of(p, rows), first, p.d_head, mean);
    derive(p, mean, values);
}

/* Quantises a row of several pieces, which is loaded twice. */
template <int DTYPE, bool ALIGNED>
static __device__ __forceinline__ void quantise_long_token(const quantise_params_t &p,
                                                           const head_rows_t &rows, int32_t row,
                                                           int32_t lane_first) {
    const int32_t piece = p.lanes * columns;
    const int64_t token = rows.begin + row + (p.cu_seqlens ? 0 : (int64_t)rows.b * p.seqlen);
    float values[columns], largest = 0;
    for (int32_t first = lane_first; first - lane_first < p.d_head; first += piece) {
        load_piece<DTYPE, ALIGNED>(p, rows, row, first, values);
        largest = largest_of(values, largest);
    }
    const divisor_t by = divisor_of(quantise_scale(largest_of_row(largest, p.lanes)));
    for (int32_t first = lane_first; first - lane_first < p.d_head; first += piece) {
        load_piece<DTYPE, ALIGNED>(p, rows, row, first, values);
        divide(values, by);
        if (row < rows.n)
            store_codes<ALIGNED>(p.codes, row_at(p.codes_stride, rows, row), first, p.d_head,
                                 values);
    }
    if (row < rows.n && lane_first == 0)
        p.scale[token * p.n_heads + rows.head] = by.scale;
}

template <int DTYPE, bool ALIGNED>
static __device__ __forceinline__ void quantise_tokens(const quantise_params_t &p, int64_t item) {
    head_rows_t rows = find_head(p, p.n_items - 1 - item, p.n_chunks);
    const place_t place = find_place(p.lanes);
    cut_chunk(rows);
    if (p.d_head <= p.lanes * columns) {
        visit_rows<DTYPE, ALIGNED>(p, rows,
                                   [&](int32_t row, int32_t first, float(&values)[columns]) {
                                       quantise_token<DTYPE, ALIGNED>(p, rows, row, first, values);
                                   });
        return;
    }
    for (int32_t row = place.row; row - place.row < rows.n; row += place.step)
        quantise_long_token<DTYPE, ALIGNED>(p, rows, row, place.first);
}

/* ---- Means ---- */

/* A block has these sums and counts of its columns in shared memory. */
typedef struct column_sums {
    double of_warp[QUANTISE_MEAN_THREADS / warp_threads][QUANTISE_MOST_MEAN_LANES * columns];
    int32_t n_left_out[QUANTISE_MOST_MEAN_LANES * columns]; /* elements that are not finite */
} column_sums_t;

/* Adds elements that may not be finite; column is the thread's first one in the block. */
static __device__ __forceinline__ void add_finite(const float (&values)[columns], int32_t column,
                                                  int32_t *n_left_out, double (&sum)[columns]) {
#pragma unroll
    for (int i = 0; i < columns; ++i)
        if (is_finite(values[i]))
            sum[i] += (double)values[i];
        else
            atomicAdd(n_left_out + column + i, 1);
}

/* Loads several rows; those beyond the last are zeros. */
template <int DTYPE, bool ALIGNED, int N>
static __device__ __forceinline__ void
load_raw_rows(const quantise_params_t &p, const head_rows_t &rows, const place_t &place,
              int32_t row, int32_t first, raw_columns<DTYPE> (&raw)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const int32_t r = row + i * place.step;
        raw[i] = load_raw<DTYPE, ALIGNED>(p.x, row_at(p.x_stride, rows, r), first,
                                          r < rows.n ? p.d_head : 0);
    }
}

/* Adds up over all tokens of a head that are the thread's. It loads the next ones, 32 bytes, before
 * it looks at those it has. */
template <int DTYPE, bool ALIGNED>
static __device__ __forceinline__ void
add_up_rows(const quantise_params_t &p, const head_rows_t &rows, const place_t &place,
            int32_t first, int32_t *n_left_out, double (&sum)[columns]) {
    constexpr int n = 32 / sizeof(raw_columns<DTYPE>);
    raw_columns<DTYPE> raw[n], next[n];
    load_raw_rows<DTYPE, ALIGNED>(p, rows, place, place.row, first, raw);
    for (int32_t row = place.row; row < rows.n; row += n * place.step) {
        load_raw_rows<DTYPE, ALIGNED>(p, rows, place, row + n * place.step, first, next);
#pragma unroll
        for (int j = 0; j < n; ++j) {
            float values[columns];
            widen<DTYPE>(raw[j], values);
            if (all_finite(values)) {
#pragma unroll
                for (int i = 0; i < columns; ++i)
                    sum[i] += (double)values[i];
            } else {
                add_finite(values, place.first, n_left_out, sum);
            }
            raw[j] = next[j];
        }
    }
}

/* Adds up over the threads of a warp that have the same columns. */
static __device__ __forceinline__ void add_up_warp(int32_t lanes, double (&sum)[columns]) {
    for (int distance = warp_threads / 2; distance >= lanes; distance /= 2)
#pragma unroll
        for (int i = 0; i < columns; ++i)
            sum[i] += __shfl_xor_sync(whole_warp, sum[i], distance);
}

/* Stores the mean of a column, of the sums of warps, in their order. */
static __device__ __forceinline__ void store_mean(const quantise_params_t &p,
                                                  const head_rows_t &rows,
                                                  const column_sums_t &sums, int32_t column) {
    const int32_t of_head = rows.part * p.mean_lanes * columns + column;
    const int32_t n = rows.n - sums.n_left_out[column];
    double sum = 0;
    for (uint32_t warp = 0; warp < blockDim.x / warp_threads; ++warp)
        sum += sums.of_warp[warp][column];
    if (of_head < p.d_head)
        p.mean[((int64_t)rows.b * p.n_heads + rows.head) * p.d_head + of_head] =
            n > 0 ? (float)(sum / n) : 0.0f;
}

static __device__ __forceinline__ column_sums_t &block_sums() {
    __shared__ column_sums_t sums;
    return sums;
}

/* A block finds the means of a few columns of a head, and prepares its scale. */
template <int DTYPE, bool ALIGNED>
static __device__ __forceinline__ void find_means(const quantise_params_t &p, int64_t item) {
    column_sums_t &sums = block_sums();
    const int32_t n = p.mean_lanes * columns;
    const head_rows_t rows = find_head(p, item, (p.d_head + n - 1) / n);
    const place_t place = find_place(p.mean_lanes);
    double sum[columns] = {};
    for (int32_t i = threadIdx.x; i < n; i += blockDim.x)
        sums.n_left_out[i] = 0;
    __syncthreads();
    add_up_rows<DTYPE, ALIGNED>(p, rows, place, rows.part * n + place.first, sums.n_left_out, sum);
    add_up_warp(p.mean_lanes, sum);
    if ((int32_t)(threadIdx.x % warp_threads) < p.mean_lanes)
#pragma unroll
        for (int i = 0; i < columns; ++i)
            sums.of_warp[threadIdx.x / warp_threads][place.first + i] = sum[i];
    __syncthreads();
    for (int32_t i = threadIdx.x; i < n; i += blockDim.x)
        store_mean(p, rows, sums, i);
    if (!p.by_token && is_first_of_scale(p, rows))
        *head_scale_at(p, rows) = 0;
    __syncthreads();
}

/* ---- Kernels ---- */

#define KERNEL(NAME, THREADS, BLOCKS, TYPE, DTYPE, FUNCTION)                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                  \
        flash_quantise_##NAME##_##TYPE(const __grid_constant__ quantise_params_t params) {         \
        for (int64_t item = blockIdx.x; item < params.n_items; item += gridDim.x)                  \
            if (params.is_aligned)                                                                 \
                FUNCTION<DTYPE, true>(params, item);                                               \
            else                                                                                   \
                FUNCTION<DTYPE, false>(params, item);                                              \
    }

#define KERNELS(TYPE, DTYPE)                                                                       \
    KERNEL(mean, QUANTISE_MEAN_THREADS, 1, TYPE, DTYPE, find_means)                                \
    KERNEL(largest, QUANTISE_THREADS, 4, TYPE, DTYPE, find_largest)                                \
    KERNEL(heads, QUANTISE_THREADS, 3, TYPE, DTYPE, quantise_head)                                 \
    KERNEL(tokens, QUANTISE_THREADS, 4, TYPE, DTYPE, quantise_tokens)

KERNELS(fp16, FLASH_DTYPE_FP16)
KERNELS(bf16, FLASH_DTYPE_BF16)
KERNELS(fp32, FLASH_DTYPE_FP32)
