/*
 * A Q of fp32 becomes a copy of 16 bits before CUDA kernels, which multiply no other, read it; so
 * does dO, and, for kernels of gradients, what has no aligned rows. Host and device code have here
 * what the kernel that makes the copy is told, and where a row of Q's copy is. Of another tensor,
 * what is said of queries goes for its tokens.
 */
#ifndef FLASH_KERNELS_COMMON_COPY_Q_H
#define FLASH_KERNELS_COMMON_COPY_Q_H

#include "common/params.h"

enum {
    COPY_Q_THREADS = 512,   /* per block, at most */
    COPY_Q_VECTOR = 8,      /* elements that a thread copies at once, 16 bytes of the copy */
    COPY_Q_ALIGNMENT = 128, /* bytes, of the copy's first row */
};

typedef struct copy_q_params {
    const void *from;
    void *to;
    flash_strides_t from_stride;
    flash_strides_t to_stride;
    const int32_t *cu_seqlens_q; /* NULL: batch * seqlen_q tokens */
    int64_t n_tokens;            /* that the copy has room for */
    int32_t seqlen_q;
    int32_t batch;
    int32_t n_heads;
    int32_t block_heads; /* that a block copies at once */
    int32_t d_head;
    int32_t row_vectors; /* of a head */
    int32_t is_aligned;  /* 1: vectors of `from` lie at 16-byte aligned addresses */
    int32_t is_dense;    /* 1: from_stride.seq is the way from each token to the next */
} copy_q_params_t;

/* The copy is contiguous, but for rows that are filled up to whole vectors. */
static inline int64_t copy_q_row(int32_t d_head) {
    return ((int64_t)d_head + COPY_Q_VECTOR - 1) / COPY_Q_VECTOR * COPY_Q_VECTOR;
}

static inline flash_strides_t copy_q_strides(const flash_params_t *p) {
    const int64_t row = copy_q_row(p->d_head), token = row * p->n_heads;
    const flash_strides_t stride = {p->cu_seqlens_q ? 0 : token * p->seqlen_q, token, row};
    return stride;
}

#ifndef __CUDACC__
/* The kernels of copy_q.cu are declared for the host, which launches them and never calls them. */
void flash_copy_q_fp16(copy_q_params_t params);
void flash_copy_q_bf16(copy_q_params_t params);
void flash_copy_halves(copy_q_params_t params); /* of elements of any 16 bits */
#endif

#endif
