/*
 * A backward call has these parameters beside flash_params_t, in which O and LSE are inputs then.
 * They are plain data for host and device code, and own nothing.
 */
#ifndef FLASH_KERNELS_COMMON_GRADIENTS_H
#define FLASH_KERNELS_COMMON_GRADIENTS_H

#include "common/kept_ds.h"
#include "common/params.h"
#include "common/sequence.h"

#include <stdint.h>

/* A gradient that the call writes, shaped as the tensor that it is of. */
typedef struct flash_gradient {
    void *data; /* NULL: not wanted */
    flash_strides_t stride;
    int32_t dtype; /* FLASH_DTYPE_... */
    int32_t adds;  /* 1: to what is there */
} flash_gradient_t;

typedef struct flash_gradients {
    const void *d_o; /* of the type of O */
    flash_strides_t d_o_stride;
    const float *d_lse; /* may be NULL */
    flash_strides_t d_lse_stride;
    flash_gradient_t dq;
    flash_gradient_t dk;
    flash_gradient_t dv;
    float *d_sinks; /* [n_heads] or NULL */
    /* All kernels of the call need these of each row of Q, [n_heads, n_rows] in the workspace: D,
     * and the logarithm of its sum with the sink. Of a row that sees no key the latter is infinite,
     * so that exp(s - log_sum) is 0. */
    float *row_d;
    float *row_log_sum; /* for CUDA kernels in the exponent of 2, for others in that of e */
    int64_t n_rows;     /* tokens of Q in the whole batch, at least */
    int64_t n_keys;     /* tokens of K, at least */
    /* On CUDA devices: what a launch computes, and where its kernel of dK and dV keeps dS. */
    flash_section_t section;
    flash_kept_ds_t ds;
} flash_gradients_t;

/* CUDA kernels get both. There Q, K, V and dO are of the 16 bits of the kernel's type, and rows of
 * them consist of whole, 16-byte aligned chunks: the call copies what does not lie like that. */
typedef struct flash_backward_params {
    flash_params_t forward;
    flash_gradients_t gradients;
} flash_backward_params_t;

/* Returns the index of query i of query head `head` in row_d and row_log_sum. */
FLASH_HOST_DEVICE static inline int64_t
flash_row_index(const flash_params_t *p, const flash_gradients_t *g, const flash_sequence_t *s,
                int32_t batch_index, int64_t head, int64_t i) {
    const int64_t begin = p->cu_seqlens_q ? s->q_begin : (int64_t)batch_index * p->seqlen_q;
    return head * g->n_rows + begin + i;
}

#endif
