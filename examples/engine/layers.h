/*
 * Kernels for what a layer computes between matrix products and attention, on a CUDA device; the
 * functions enqueue one on the stream. What they compute is in device.h.
 */
#ifndef LAYERS_H
#define LAYERS_H

#include <cuda_runtime_api.h>

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Arrays of `void` have elements of fp16. */
void layers_round(cudaStream_t stream, const float *x, int64_t n, void *y);
void layers_embed(cudaStream_t stream, const int32_t *tokens, int64_t n, const void *table,
                  int64_t width, float *hidden);
void layers_normalize(cudaStream_t stream, const float *x, const int32_t *rows, int64_t n,
                      const float *weights, int64_t width, float epsilon, void *y);
void layers_gate(cudaStream_t stream, const void *x, int64_t n, int64_t inner, void *y);
void layers_choose(cudaStream_t stream, const float *x, int64_t n, int64_t columns, int32_t *best);

#ifdef __cplusplus
}
#endif

#endif
