/*
 * What a kernel is told: one attention problem, validated and with every default filled in.
 * Shared by host and device code; plain data, no ownership.
 */
#ifndef FLASH_KERNELS_COMMON_PARAMS_H
#define FLASH_KERNELS_COMMON_PARAMS_H

#include <stdint.h>

/* Strides are distances in elements from one batch entry, token and head to the next. */
typedef struct flash_strides {
    int64_t batch; /* 0 where the tensor is ragged */
    int64_t seq;
    int64_t head;
} flash_strides_t;

/* A stride of heads with this value is as many elements as the ragged batch has queries,
 * cu_seqlens_q[batch]. */
#define FLASH_STRIDE_TOTAL INT64_MIN

/* K and V in pages, as flash_paging_t says; all zero where they are not. */
typedef struct flash_pages {
    const int32_t *table;   /* ids of K's pages; NULL: a cache of slots */
    int64_t table_stride;   /* ids that a row of the table holds */
    const int32_t *indptr;  /* [batch + 1] or NULL */
    const int32_t *rows;    /* [batch] or NULL */
    const int32_t *v_table; /* ids of V's pages; never NULL beside a table */
    int32_t page_size;      /* tokens; 0: K and V are not in pages */
    int32_t n_pages;        /* of the pool */
} flash_pages_t;

/* Scales of K or of V of e4m3, by batch entry and K/V head. */
typedef struct flash_scale {
    const float *data; /* NULL: every scale is 1 */
    int64_t stride_batch;
    int64_t stride_head;
} flash_scale_t;

typedef struct flash_params {
    const void *q; /* [batch, seqlen_q, n_heads, d_head]    or [total_q, n_heads, d_head] */
    const void *k; /* [batch, seqlen_k, n_heads_kv, d_head] or [total_k, n_heads_kv, d_head], or
                      [n_pages, page_size, n_heads_kv, d_head] */
    const void *v; /* as k */
    void *o;       /* as q */
    float *lse;    /* [batch, n_heads, seqlen_q] or [n_heads, total_q]; may be NULL */
    flash_strides_t q_stride;
    flash_strides_t k_stride;
    flash_strides_t v_stride;
    flash_strides_t o_stride;
    flash_strides_t lse_stride;  /* head may be FLASH_STRIDE_TOTAL */
    const int32_t *cu_seqlens_q; /* [batch + 1] or NULL */
    const int32_t *cu_seqlens_k; /* [batch + 1] or NULL */
    const int32_t *seqused_q;    /* [batch] or NULL */
    const int32_t *seqused_k;    /* [batch] or NULL */
    flash_pages_t pages;         /* of K and V, whose stride.batch is then that of a page */
    flash_scale_t k_scale;
    flash_scale_t v_scale;
    int32_t q_dtype; /* FLASH_DTYPE_...; that of K and V is the kernel's */
    int32_t o_dtype;
    int32_t batch;
    int32_t seqlen_q; /* of every sequence, or the longest */
    int32_t seqlen_k; /* of every sequence, or the longest */
    int32_t n_heads;
    int32_t n_heads_kv;
    int32_t group; /* n_heads / n_heads_kv */
    int32_t d_head;
    int32_t window_left;  /* -1: unbounded; causal is window_right = 0 */
    int32_t window_right; /* -1: unbounded */
    float softmax_scale;
    float softcap; /* 0: none */
    /* Sequences of so many queries are computed, and the others are as if they had none: where two
     * kernels share a batch. most_queries 0: all. */
    int32_t least_queries;
    int32_t most_queries;
} flash_params_t;

#endif
