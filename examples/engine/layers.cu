/*
 * See layers.h. A block has a row, and its threads take the row's elements in turn.
 */
#include "layers.h"

#include <cuda_fp16.h>
#include <math_constants.h>

enum { THREADS = 256, WARP = 32, WARPS = THREADS / WARP };

/* Returns the row that a block has. */
static __device__ int64_t row_of_block() {
    return blockIdx.x;
}

static unsigned blocks(int64_t n) {
    return static_cast<unsigned>(n);
}

static __global__ void round_elements(const float *x, int64_t n, __half *y) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
    for (int64_t i = row_of_block() * THREADS + threadIdx.x; i < n; i += step)
        y[i] = __float2half(x[i]);
}

static __global__ void embed(const int32_t *tokens, const __half *table, int64_t width,
                             float *hidden) {
    const int64_t row = row_of_block();
    for (int64_t j = threadIdx.x; j < width; j += THREADS)
        hidden[row * width + j] = __half2float(table[tokens[row] * width + j]);
}

/* Returns the sum over the threads of the block, to each. */
static __device__ float sum_of_block(float x) {
    __shared__ float sums[WARPS];
    for (int lane = WARP / 2; lane > 0; lane /= 2)
        x += __shfl_xor_sync(~0u, x, lane);
    if (threadIdx.x % WARP == 0)
        sums[threadIdx.x / WARP] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < WARPS; i++)
        x += sums[i];
    return x;
}

static __global__ void normalize(const float *x, const int32_t *rows, const float *weights,
                                 int64_t width, float epsilon, __half *y) {
    const int64_t row = row_of_block();
    const float *from = x + (rows != nullptr ? rows[row] : row) * width;
    float squares = 0;
    for (int64_t j = threadIdx.x; j < width; j += THREADS)
        squares += from[j] * from[j];
    const float factor = 1 / sqrtf(sum_of_block(squares) / static_cast<float>(width) + epsilon);
    for (int64_t j = threadIdx.x; j < width; j += THREADS)
        y[row * width + j] = __float2half(from[j] * factor * weights[j]);
}

static __global__ void gate(const __half *x, int64_t inner, __half *y) {
    const int64_t row = row_of_block();
    for (int64_t j = threadIdx.x; j < inner; j += THREADS) {
        const float g = __half2float(x[row * 2 * inner + j]);
        const float up = __half2float(x[row * 2 * inner + inner + j]);
        y[row * inner + j] = __float2half(g / (1 + expf(-g)) * up);
    }
}

/* A number and its place in the row. */
struct found_t {
    float value;
    int32_t place;
};

static __device__ found_t better_of(found_t a, found_t b) {
    const bool b_is_better = b.value > a.value || (b.value == a.value && b.place < a.place);
    return b_is_better ? b : a;
}

/* Each thread has the best of its elements, which then meet in pairs. */
static __global__ void choose(const float *x, int64_t columns, int32_t *best) {
    __shared__ found_t found[THREADS];
    const int64_t row = row_of_block();
    const int thread = static_cast<int>(threadIdx.x);
    found_t own = {-CUDART_INF_F, 0};
    for (int64_t j = thread; j < columns; j += THREADS)
        own = better_of(own, {x[row * columns + j], static_cast<int32_t>(j)});
    found[thread] = own;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (thread < half)
            found[thread] = better_of(found[thread], found[thread + half]);
    }
    if (thread == 0)
        best[row] = found[0].place;
}

/* ---- Launches ---- */

void layers_round(cudaStream_t stream, const float *x, int64_t n, void *y) {
    const int64_t most = 4096, needed = (n + THREADS - 1) / THREADS;
    round_elements<<<blocks(needed < most ? needed : most), THREADS, 0, stream>>>(
        x, n, static_cast<__half *>(y));
}

void layers_embed(cudaStream_t stream, const int32_t *tokens, int64_t n, const void *table,
                  int64_t width, float *hidden) {
    embed<<<blocks(n), THREADS, 0, stream>>>(tokens, static_cast<const __half *>(table), width,
                                             hidden);
}

void layers_normalize(cudaStream_t stream, const float *x, const int32_t *rows, int64_t n,
                      const float *weights, int64_t width, float epsilon, void *y) {
    normalize<<<blocks(n), THREADS, 0, stream>>>(x, rows, weights, width, epsilon,
                                                 static_cast<__half *>(y));
}

void layers_gate(cudaStream_t stream, const void *x, int64_t n, int64_t inner, void *y) {
    gate<<<blocks(n), THREADS, 0, stream>>>(static_cast<const __half *>(x), inner,
                                            static_cast<__half *>(y));
}

void layers_choose(cudaStream_t stream, const float *x, int64_t n, int64_t columns, int32_t *best) {
    choose<<<blocks(n), THREADS, 0, stream>>>(x, columns, best);
}
