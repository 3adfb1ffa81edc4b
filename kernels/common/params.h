/*
 * The parameters of a kernel are one attention problem, validated, with every default filled in:
 * they are plain data for host and device code, and own nothing.
 */
#ifndef FLASH_KERNELS_COMMON_PARAMS_H
#define FLASH_KERNELS_COMMON_PARAMS_H

#include "common/divide.h"

#include <stdint.h>

/* Strides are distances in elements from one batch entry, token or head to the next. */
typedef struct flash_strides {
    int64_t batch; /* 0 if the tensor is ragged */
    int64_t seq;
    int64_t head;
} flash_strides_t;

/* This stride of heads stands for the queries of the ragged batch, cu_seqlens_q[batch]. */
#define FLASH_STRIDE_TOTAL INT64_MIN

/* K and V in pages, as in flash_paging_t; all zero if they are not in pages. */
typedef struct flash_pages {
    const int32_t *table;   /* ids of K's pages; NULL: a cache of slots */
    int64_t table_stride;   /* ids per row of the table */
    const int32_t *indptr;  /* [batch + 1] or NULL */
    const int32_t *rows;    /* [batch] or NULL; NULL with rows64 */
    const int64_t *rows64;  /* [batch] or NULL */
    const int32_t *v_table; /* ids of V's pages; NULL only without a table */
    int32_t page_size;      /* tokens; 0: K and V are not in pages */
    int32_t n_pages;        /* in the pool */
} flash_pages_t;

/* Scales of K or of V of e4m3, by batch entry and K/V head, or, for CPU kernels alone, by page. */
typedef struct flash_scale {
    const float *data;    /* NULL: every scale is 1 */
    int64_t stride_batch; /* negative: -1 - the stride of a page (common/scale.h) */
    int64_t stride_head;
} flash_scale_t;

/* Scales of Q of e4m3, which multiply each other: by batch entry and K/V head, and by token and
 * query head, [batch, seqlen_q, n_heads] or [total_q, n_heads]. */
typedef struct flash_q_scale {
    flash_scale_t of_head;
    const float *of_token; /* NULL: every scale is 1 */
    flash_strides_t token_stride;
} flash_q_scale_t;

/* This says what a mask does to the scores of each tile of rows and each block of keys, if a kernel
 * has looked ahead of the one that computes them. All zero: none has. */
typedef struct flash_mask_blocks {
    uint8_t *effects; /* [entries, heads, tiles, blocks], bits as in common/mask_effect.cuh */
    int32_t entries;  /* of the batch; 1: the mask does the same to all of them */
    int32_t heads;    /* 1: the mask does the same to all of them */
    int32_t tiles;    /* of the most queries that a sequence has */
    int32_t blocks;   /* of the most keys */
} flash_mask_blocks_t;

/* The queries and keys of a block of FLASH_MASK_BLOCKS. */
typedef struct flash_mask_block {
    int32_t queries;
    int32_t keys;
} flash_mask_block_t;

/* This joins scaled scores: ALiBi, and a mask with a row per query and a column per key from
 * first_key on, as in flash_mask_t. All zero: nothing. */
typedef struct flash_bias {
    const float *alibi_slopes; /* [n_heads], or [batch, n_heads]; NULL: none */
    int64_t alibi_stride_batch;
    const void *mask;     /* NULL: none */
    int64_t stride_batch; /* elements, or words of bits; 0 if queries are ragged, but of blocks */
    int64_t stride_head;
    int64_t stride_query; /* FLASH_MASK_BLOCKS: from one block of queries to the next */
    union {
        int64_t stride_key;
        flash_mask_block_t block; /* FLASH_MASK_BLOCKS */
    };
    int32_t first_key;
    int32_t n_keys;
    int32_t kind;         /* FLASH_MASK_... */
    int32_t dtype;        /* of elements that are added */
    int32_t is_last_keys; /* 1: first_key is counted from the sequence's end, and negative */
    /* 1: an id of pages.table below 0 hides the keys of its page. Here it takes no room, and no
     * other member moves. */
    int32_t has_page_holes;
    const float *head_scale; /* [n_heads]: factors of elements that are added; NULL: all 1 */
    flash_mask_blocks_t blocks;
} flash_bias_t;

/* Dropout of weights, as in flash_dropout_t. */
typedef struct flash_dropout_params {
    const uint64_t *seed_ptr;   /* NULL: nothing is added to seed */
    const uint64_t *offset_ptr; /* NULL: nothing is added to offset */
    uint64_t seed;
    uint64_t offset;
    uint32_t threshold; /* a weight whose 16 bits are below is dropped; 0: none is */
    float scale;        /* of the weights that stay, 1 / (1 - p); 1 if none is dropped */
} flash_dropout_params_t;

typedef struct flash_params {
    const void *q; /* [batch, seqlen_q, n_heads, d_head]    or [total_q, n_heads, d_head] */
    const void *k; /* [batch, seqlen_k, n_heads_kv, d_head] or [total_k, n_heads_kv, d_head], or
                      [n_pages, page_size, n_heads_kv, d_head] */
    const void *v; /* as k, of d_head_v elements per row */
    void *o;       /* as q, of d_head_v elements per row */
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
    const int32_t *leftpad_k;    /* [batch] or NULL; NULL with a page table */
    flash_pages_t pages;         /* with pages, stride.batch of K and V is that of a page */
    flash_scale_t k_scale;
    flash_scale_t v_scale;
    const float *sinks; /* [n_heads] or NULL, in units of scaled scores; see flash_sink_at() */
    flash_bias_t bias;
    int32_t q_dtype; /* FLASH_DTYPE_...; that of K is the kernel's */
    int32_t v_dtype; /* on CUDA devices it is that of K */
    int32_t o_dtype;
    int32_t batch;
    int32_t seqlen_q; /* of every sequence, or the longest */
    int32_t seqlen_k; /* of every sequence, or the longest */
    int32_t n_heads;
    int32_t n_heads_kv;
    int32_t group;           /* n_heads / n_heads_kv */
    int32_t d_head;          /* of Q and K */
    int32_t d_head_v;        /* of V and O */
    int32_t window_left;     /* -1: unbounded; causal is window_right = 0 */
    int32_t window_right;    /* -1: unbounded */
    int32_t attention_chunk; /* keys; 0: none */
    flash_divider_t by_attention_chunk;
    float softmax_scale;
    float softcap; /* 0: none */
    /* If two kernels share a batch, this one computes sequences of least_queries ... most_queries
     * queries, and treats the others as if they had none. most_queries 0: it computes all. */
    int32_t least_queries;
    int32_t most_queries;
    int32_t pack_shift;      /* 2^pack_shift query heads of a group share tiles, in SM90 kernels */
    int32_t diagonal_offset; /* keys; another than 0 needs a row with windows */
    flash_q_scale_t q_scale; /* only CPU kernels look at it */
    flash_dropout_params_t dropout;
} flash_params_t;

#endif
