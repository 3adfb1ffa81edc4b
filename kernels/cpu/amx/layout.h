/*
 * This file says how the AMX family lays out its memory, and how much it needs. It is plain C,
 * since the host library computes the sizes, too.
 *
 * Everything is transposed: scores are S^T = K Q^T and results O^T = V^T P^T, with a column for
 * each row of the task. So what belongs to a row (maximum, sum, the keys it sees) is a lane of
 * vectors.
 *
 * Everything is made of squares of 32 x 32. A square of operands is two tiles of 16 rows x 64 bytes
 * of bf16, one after the other (2 KB); a square of results is [32][32] fp32 (4 KB).
 *
 *   left operand                 right operand                 result
 *   K: keys x d                  Q^T: d x rows                 S^T: keys x rows
 *   V^T: d_v x keys              P^T: keys x rows              O^T: d_v x rows
 *
 *     32 columns of d              16 rows      16 rows          16 rows  16 rows
 *   +--------------------+       +------------+------------+   +--------+--------+
 *   | key 0 ... 15       |       | d 0, 1     | d 0, 1     |   |        |        |  16 keys
 *   +--------------------+       | d 2, 3     | d 2, 3     |   +--------+--------+
 *   | key 16 ... 31      |       |    ...     |    ...     |   |        |        |  16 keys
 *   +--------------------+       +------------+------------+   +--------+--------+
 *
 * (V^T, P^T and O^T are the same with keys and d exchanged, and d_head_v in place of d_head.)
 *
 *   block    K   [B_c / 32][d / 32][terms] squares
 *            V^T [d_v / 32][B_c / 32][terms] squares
 *            bad [B_c / 32] masks: a bit for each key that holds infinity or NaN
 *
 * fp16 is exactly the sum of two bf16 terms, high and low, which take two squares. A Q of fp32 is
 * the sum of three, whatever the type of K and V.
 */
#ifndef FLASH_KERNELS_CPU_AMX_LAYOUT_H
#define FLASH_KERNELS_CPU_AMX_LAYOUT_H

#include "common/bias.h"
#include "common/dtype.h"
#include "common/params.h"
#include "cpu/cpu_scratch.h"
#include "cpu/tuning.h"
#include "flashattn.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    AMX_TERMS_MAX = 3,                                    /* of an element: amx_terms_of() */
    AMX_OPERANDS = AMX_SQUARE * AMX_SQUARE,               /* elements of a square */
    AMX_OPERAND_BYTES = AMX_OPERANDS * 2,                 /* bf16 */
    AMX_RESULT_BYTES = AMX_OPERANDS * (int)sizeof(float), /* fp32 */
    /* Bytes of what is kept for each row of a task. */
    AMX_ROW_BYTES = 5 * (int)sizeof(float) + (int)sizeof(flash_bias_row_t),
    AMX_STRIPS_MAX = AMX_ROWS_MAX / AMX_SQUARE /* squares along the rows of a task */
};

static inline uint64_t amx_squares(int64_t n) {
    return ((uint64_t)n + AMX_SQUARE - 1) / AMX_SQUARE;
}

/* Returns how many squares of scores are computed at a time. Beside their exponentials runs P V of
 * about one square along d, and the level 1 cache has room for little more than P and Q. */
static inline int32_t amx_chunk(const flash_config_t *config, int64_t d_head_v) {
    const uint64_t share = amx_squares(config->B_c) / amx_squares(d_head_v);
    return share < 1 ? 1 : share > AMX_CHUNK_MAX ? AMX_CHUNK_MAX : (int32_t)share;
}

static inline int32_t amx_terms_of(int32_t dtype) {
    DTYPES_KNOWN(7); /* the family has rows of 16 bits only */
    return dtype == FLASH_DTYPE_FP32 ? 3 : dtype == FLASH_DTYPE_FP16 ? 2 : 1;
}

typedef struct amx_terms {
    int32_t keys; /* of K, V and P */
    int32_t q;
} amx_terms_t;

static inline amx_terms_t amx_terms(const flash_config_t *config, const flash_params_t *p) {
    const amx_terms_t terms = {amx_terms_of(config->dtype), amx_terms_of(p->q_dtype)};
    return terms;
}

static inline uint64_t amx_mask_bytes(const flash_config_t *config) {
    return (amx_squares(config->B_c) * sizeof(uint32_t) + 63) / 64 * 64;
}

static inline uint64_t amx_block_size(const flash_config_t *config, head_dims_t dims) {
    const uint64_t columns = amx_squares(dims.qk) + amx_squares(dims.v);
    const uint64_t squares = amx_squares(config->B_c) * columns;
    return squares * (uint64_t)amx_terms_of(config->dtype) * AMX_OPERAND_BYTES +
           amx_mask_bytes(config);
}

/* Counts the squares of the widest rows that are transposed: of Q, or of V and O. */
static inline uint64_t amx_row_squares(head_dims_t dims, amx_terms_t terms) {
    const uint64_t q = amx_squares(dims.qk) * (uint64_t)terms.q;
    const uint64_t v = amx_squares(dims.v) * (uint64_t)terms.keys;
    return q > v ? q : v;
}

/* Returns the scratch bytes of a task of n_rows rows, which amx_divide_scratch() divides. */
static inline uint64_t amx_scratch_size(const flash_config_t *config, const flash_params_t *params,
                                        int64_t n_rows) {
    const amx_terms_t n_terms = amx_terms(config, params);
    const uint64_t terms = (uint64_t)n_terms.keys, q_terms = (uint64_t)n_terms.q;
    const uint64_t rows = amx_squares(n_rows), keys = amx_squares(config->B_c);
    const head_dims_t dims = head_dims_of(params);
    const uint64_t q = rows * amx_squares(dims.qk) * q_terms * AMX_OPERAND_BYTES;
    const uint64_t o = rows * amx_squares(dims.v) * AMX_RESULT_BYTES;
    const uint64_t s = (keys + (uint64_t)amx_chunk(config, dims.v)) * AMX_RESULT_BYTES;
    const uint64_t p = 2 * keys * terms * AMX_OPERAND_BYTES;
    const uint64_t transposed = amx_row_squares(dims, n_terms) * AMX_OPERAND_BYTES;
    return q + o + s + p + transposed + rows * AMX_SQUARE * AMX_ROW_BYTES +
           amx_block_size(config, dims);
}

/* Says whether a head with that number of rows is decoded on tile registers where its keys are
 * split. */
static inline bool amx_decodes(const flash_config_t *config, const flash_params_t *params,
                               int64_t n_rows) {
    return config->dtype == FLASH_DTYPE_BF16 && params->q_dtype == FLASH_DTYPE_BF16 &&
           params->d_head % AMX_SQUARE == 0 && params->d_head_v % AMX_SQUARE == 0 &&
           n_rows >= AMX_DECODE_MIN_ROWS && n_rows <= AMX_DECODE_MAX_ROWS;
}

/* Returns the scratch bytes of a task that decodes; its rows are padded to at most 2 B_r. */
static inline uint64_t amx_decode_scratch_size(const flash_config_t *config, head_dims_t dims) {
    const uint64_t rows = (uint64_t)config->B_r;
    const uint64_t d = (uint64_t)dims.qk, d_v = (uint64_t)dims.v;
    const uint64_t q_and_o = 2 * rows * (d * 2 + d_v * sizeof(float)), lanes = rows * 2 * 64;
    const uint64_t scores = AMX_SQUARE * 16 * (sizeof(float) + 4 * 2);
    const uint64_t tails = AMX_SQUARE * (d + d_v) * 2;
    return q_and_o + lanes + scores + tails + 2 * rows * sizeof(flash_bias_row_t);
}

#endif
