/*
 * CPUs and CUDA devices quantise to e4m3 by the same rules, which are here, with what the kernels
 * of quantise.cu are told.
 */
#ifndef FLASH_KERNELS_COMMON_QUANTISE_H
#define FLASH_KERNELS_COMMON_QUANTISE_H

#include "common/host_device.h"
#include "common/params.h"

#include <math.h>

/* ---- Rules ---- */

enum { QUANTISE_MOST_TURNED = 256 };

/* Returns how many columns a Hadamard matrix turns together: the largest power of two that divides
 * d, up to QUANTISE_MOST_TURNED. */
static inline int64_t quantise_turned_columns(int64_t d) {
    const int64_t power = d & -d;
    return power < QUANTISE_MOST_TURNED ? power : QUANTISE_MOST_TURNED;
}

/* Returns what elements are multiplied by before n of them are turned. */
static inline float quantise_shrink(int64_t n) {
    return (float)(1 / sqrt((double)n));
}

/* Returns the scale that makes this number the largest code, 448. 2^-126 is the smallest scale:
 * 1 / it is finite, and no digit of it is lost. */
FLASH_HOST_DEVICE static inline float quantise_scale(float largest) {
    const float scale = largest / 448.0f;
    return largest == 0 ? 1.0f : scale > 0x1p-126f ? scale : 0x1p-126f;
}

/* ---- Kernels for CUDA devices ---- */

enum {
    QUANTISE_THREADS = 256,      /* per block, at most */
    QUANTISE_MEAN_THREADS = 768, /* per block that finds means, at most */
    QUANTISE_COLUMNS = 8,        /* that a thread has at once */
    QUANTISE_CHUNK = 128,        /* tokens of a head that a block quantises */
    QUANTISE_MOST_MEAN_LANES = 16,
};

typedef struct quantise_params {
    const void *x;
    uint8_t *codes;
    float *scale;
    float *mean;               /* NULL: nothing is taken off */
    const int32_t *cu_seqlens; /* NULL: all sequences have seqlen tokens */
    flash_strides_t x_stride;
    flash_strides_t codes_stride;
    int64_t n_items; /* blocks take in turn: a chunk of a head, or columns of it for means */
    int32_t batch;
    int32_t seqlen;
    int32_t n_heads;
    int32_t n_scales;
    int32_t d_head;
    int32_t n_chunks;   /* of a head: at least 1 */
    int32_t lanes;      /* threads of a row, a power of two up to 32 */
    int32_t mean_lanes; /* threads that share a block's columns when it finds means: the same, up
                           to QUANTISE_MOST_MEAN_LANES */
    int32_t turned;     /* columns that a Hadamard matrix turns together; 0: none are */
    float shrink;
    int32_t by_token;
    int32_t is_aligned; /* 1: each thread's columns of x and of codes are aligned vectors */
} quantise_params_t;

#ifndef __CUDACC__
/* The kernels of quantise.cu are declared for the host, which launches them and never calls them.
 * Each is there for each type of x. */
#define QUANTISE_DECLARE(TYPE)                                                                     \
    void flash_quantise_mean_##TYPE(quantise_params_t params);                                     \
    void flash_quantise_largest_##TYPE(quantise_params_t params);                                  \
    void flash_quantise_heads_##TYPE(quantise_params_t params);                                    \
    void flash_quantise_tokens_##TYPE(quantise_params_t params);
QUANTISE_DECLARE(fp16)
QUANTISE_DECLARE(bf16)
QUANTISE_DECLARE(fp32)
#undef QUANTISE_DECLARE
#endif

#endif
