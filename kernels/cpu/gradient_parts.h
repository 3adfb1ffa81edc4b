/*
 * This file divides the scratch memory of a task of gradients in vectors, and so says how much that
 * is.
 */
#ifndef FLASH_KERNELS_CPU_GRADIENT_PARTS_H
#define FLASH_KERNELS_CPU_GRADIENT_PARTS_H

#include "common/params.h"
#include "cpu/cpu_scratch.h"
#include "cpu/gradient_tiles.h"
#include "cpu/tuning.h"
#include "flashattn.h"

#include <stdbool.h>
#include <stdint.h>

/* Blocks of rows, and of keys, whose parts of a sum fp32 adds up; totals in double take the rest.
 * What a block gives is one addition (tiled/multiply.h). */
enum { GRADIENT_PART_BLOCKS = 32 };

/* The extent of a task says how many rows and keys it may have. */
typedef struct gradient_extent {
    int64_t dq_rows; /* rows whose dQ it sums up; 0: none */
    int64_t rows;    /* packed rows of a sequence at most */
    int64_t keys;    /* of a sequence at most */
} gradient_extent_t;

/* Rows of a tensor in words (tiled/words.h), zeros beyond their columns to the end of a vector. A
 * word has neighbours in a row or, where a product goes over the rows, in a column. */
typedef struct word_rows {
    float *along;  /* [rows][words of columns] */
    float *across; /* [words of rows][columns]; `along` where a word is one element */
    float *turned; /* [blocks][columns][words of B_r rows]: Q and dO of products on tiles, in place
                    * of `across` */
    int64_t along_stride;
    int64_t across_stride;
    int64_t turned_stride;
    int64_t turned_block; /* words from block to block */
    int64_t columns;
    bool finite; /* all of them */
} word_rows_t;

/* Rows of Q and dO, and what else gradients need of them. A task of dQ keeps all its rows, one
 * without has room for a block. */
typedef struct gradient_rows {
    word_rows_t q;
    word_rows_t d_o;
    int32_t *q_is_finite; /* [blocks] */
    int32_t *d_o_is_finite;
    float *log_sum;
    float *d;       /* D */
    int32_t *begin; /* keys that a row sees: begin ... end - 1 */
    int32_t *end;
} gradient_rows_t;

/* Sums of a gradient, a row for each query or key: fp32, and double where they have several parts.
 */
typedef struct gradient_sums {
    float *sum;
    double *total; /* NULL: a sum has one part */
    int64_t stride;
    int64_t columns;
    bool is_turned;  /* a row for each column, as tiles compute dK and dV */
    bool has_totals; /* a part ended */
} gradient_sums_t;

/* The parts of a task's scratch, each aligned to 64. */
typedef struct gradient_parts {
    gradient_rows_t rows;
    word_rows_t k;      /* [B_c] */
    word_rows_t v;      /* [B_c], along only */
    float *k_panels;    /* panels of K^T (tiled/pack.h), words of [d][c_pad] */
    float *v_panels;    /* panels of V^T, words of [d_v][c_pad] */
    float *p;           /* [B_r][s_stride], scores, then P */
    float *ds;          /* [B_r][s_stride], dP, then dS */
    float *ds_along;    /* [B_r][s_stride], dS in words of neighbours in a row */
    float *p_across;    /* P in words of neighbours in a column, [words of B_r][s_stride] */
    float *ds_across;   /* dS likewise */
    int32_t *first_row; /* [tiles of B_c keys], rows that see some key of a tile: from here on */
    int32_t *end_row;   /* [tiles of B_c keys] */
    gradient_sums_t dq; /* [extent.dq_rows] */
    gradient_sums_t dk; /* [B_c] */
    gradient_sums_t dv; /* [B_c] */
    float *turning;     /* [16][elements of the widest row], rows of dK or dV that are stored */
    int64_t s_stride;
    int64_t c_pad;
} gradient_parts_t;

/* Parts are taken of this memory, one behind the other. */
typedef struct gradient_memory {
    uintptr_t begin;
    uint64_t size;
} gradient_memory_t;

static inline gradient_extent_t gradient_extent(const flash_params_t *params, int64_t dq_rows) {
    const gradient_extent_t extent = {dq_rows, (int64_t)params->seqlen_q * params->group,
                                      params->seqlen_k};
    return extent;
}

/* Returns the elements from row to row of a matrix of n columns: whole vectors, an odd number of
 * cache lines, so that a column's elements lie in all sets of a cache. */
static inline int64_t gradient_stride(int64_t n) {
    const int64_t lines = (n + 15) / 16;
    return (lines | 1) * 16;
}

static inline void *take_numbers(gradient_memory_t *memory, int64_t n, uint64_t size) {
    void *numbers = (void *)(memory->begin + memory->size);
    memory->size += ((uint64_t)n * size + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    return numbers;
}

static inline float *take_floats(gradient_memory_t *memory, int64_t n) {
    return take_numbers(memory, n, sizeof(float));
}

/* Says whether a configuration multiplies on tile registers. */
static inline bool gradient_on_tiles(const flash_config_t *config) {
    return config->arch == FLASH_ARCH_AMX;
}

/* Returns the elements of a word in the products of a configuration. */
static inline int64_t gradient_word_elements(const flash_config_t *config) {
    return config->arch == FLASH_ARCH_AVX512_BF16 || config->arch == FLASH_ARCH_NEON_BF16 ||
                   gradient_on_tiles(config)
               ? 2
               : 1;
}

static inline word_rows_t take_matrix(gradient_memory_t *memory, int64_t rows, int64_t columns,
                                      int64_t word) {
    word_rows_t matrix = {.across_stride = gradient_stride(columns), .columns = columns};
    matrix.along_stride = gradient_stride((columns + word - 1) / word);
    matrix.along = take_floats(memory, rows * matrix.along_stride);
    matrix.across = word == 1
                        ? matrix.along
                        : take_floats(memory, (rows + word - 1) / word * matrix.across_stride);
    return matrix;
}

/* Takes Q or dO of products on tiles, in blocks of B_r rows. */
static inline word_rows_t take_turned(gradient_memory_t *memory, int64_t blocks, int64_t B_r,
                                      int64_t columns) {
    const int64_t padded = gradient_tiles(columns);
    word_rows_t matrix = {.along_stride = gradient_stride(padded / 2),
                          .turned_stride = gradient_stride(B_r / 2),
                          .columns = columns};
    matrix.turned_block = padded * matrix.turned_stride;
    matrix.along = take_floats(memory, blocks * B_r * matrix.along_stride);
    matrix.turned = take_floats(memory, blocks * matrix.turned_block);
    return matrix;
}

static inline word_rows_t take_operand(gradient_memory_t *memory, int64_t rows,
                                       const flash_config_t *config, int64_t columns) {
    const int64_t blocks = (rows + config->B_r - 1) / config->B_r;
    return gradient_on_tiles(config)
               ? take_turned(memory, blocks, config->B_r, columns)
               : take_matrix(memory, rows, columns, gradient_word_elements(config));
}

static inline gradient_rows_t take_rows(gradient_memory_t *memory, int64_t rows,
                                        const flash_config_t *config, head_dims_t dims) {
    const int64_t blocks = (rows + config->B_r - 1) / config->B_r;
    gradient_rows_t taken = {.q = take_operand(memory, rows, config, dims.qk)};
    taken.d_o = take_operand(memory, rows, config, dims.v);
    taken.q_is_finite = take_numbers(memory, blocks, sizeof(int32_t));
    taken.d_o_is_finite = take_numbers(memory, blocks, sizeof(int32_t));
    taken.log_sum = take_floats(memory, rows);
    taken.d = take_floats(memory, rows);
    taken.begin = take_numbers(memory, rows, sizeof(int32_t));
    taken.end = take_numbers(memory, rows, sizeof(int32_t));
    return taken;
}

static inline gradient_sums_t take_sums(gradient_memory_t *memory, int64_t rows, int64_t columns,
                                        bool has_totals) {
    gradient_sums_t sums = {.stride = gradient_stride(columns), .columns = columns};
    sums.sum = take_floats(memory, rows * sums.stride);
    if (has_totals)
        sums.total = take_numbers(memory, rows * sums.stride, sizeof(double));
    return sums;
}

/* Takes sums of dK or dV of a block of B_c keys. */
static inline gradient_sums_t take_key_sums(gradient_memory_t *memory, const flash_config_t *config,
                                            int64_t columns, bool has_totals) {
    gradient_sums_t sums;
    if (!gradient_on_tiles(config))
        return take_sums(memory, config->B_c, columns, has_totals);
    sums = take_sums(memory, gradient_tiles(columns), config->B_c, has_totals);
    sums.columns = columns;
    sums.is_turned = true;
    return sums;
}

/* Says whether sums over n rows or keys in blocks of so many have several parts. */
static inline bool gradient_has_parts(int64_t n, int32_t block) {
    return n > (int64_t)GRADIENT_PART_BLOCKS * block;
}

static inline gradient_parts_t take_gradient_parts(gradient_memory_t *memory,
                                                   const flash_config_t *config, head_dims_t dims,
                                                   const gradient_extent_t *extent) {
    const int64_t r = config->B_r, c = config->B_c, word = gradient_word_elements(config);
    const int64_t row_words = (r + word - 1) / word;
    const bool has_row_parts = gradient_has_parts(extent->rows, config->B_r);
    const bool has_key_parts = gradient_has_parts(extent->keys, config->B_c);
    gradient_parts_t parts = {.s_stride = gradient_stride(c + 16 * (word - 1)),
                              .c_pad = (int64_t)tiled_pad(c)};
    parts.rows = take_rows(memory, extent->dq_rows > r ? extent->dq_rows : r, config, dims);
    parts.k = take_matrix(memory, c, dims.qk, word);
    parts.v = take_matrix(memory, c, dims.v, word);
    const bool tiles = gradient_on_tiles(config);
    const int64_t qk = tiles ? gradient_tiles(dims.qk) : dims.qk;
    const int64_t v = tiles ? gradient_tiles(dims.v) : dims.v;
    parts.k_panels = take_floats(memory, (qk + word - 1) / word * parts.c_pad);
    parts.v_panels = take_floats(memory, (v + word - 1) / word * parts.c_pad);
    parts.p = take_floats(memory, row_words * word * parts.s_stride);
    parts.ds = take_floats(memory, row_words * word * parts.s_stride);
    parts.ds_along = parts.ds_across = parts.ds;
    parts.p_across = parts.p;
    if (word > 1) {
        parts.ds_along = take_floats(memory, row_words * word * parts.s_stride);
        parts.ds_across = take_floats(memory, row_words * parts.s_stride);
        parts.p_across = take_floats(memory, row_words * parts.s_stride);
    }
    parts.first_row = take_numbers(memory, c, sizeof(int32_t));
    parts.end_row = take_numbers(memory, c, sizeof(int32_t));
    parts.dk = take_key_sums(memory, config, dims.qk, has_row_parts);
    parts.dv = take_key_sums(memory, config, dims.v, has_row_parts);
    parts.dq = take_sums(memory, tiles ? gradient_tiles(extent->dq_rows) : extent->dq_rows, dims.qk,
                         has_key_parts);
    if (tiles)
        parts.turning = take_floats(memory, 16 * (qk > v ? qk : v));
    return parts;
}

/* Returns the bytes of a task's scratch, a multiple of 64. */
static inline uint64_t gradient_scratch_size(const flash_config_t *config, head_dims_t dims,
                                             const gradient_extent_t *extent) {
    gradient_memory_t memory = {0, 0};
    take_gradient_parts(&memory, config, dims, extent);
    return memory.size;
}

#endif
