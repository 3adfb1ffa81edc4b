/*
 * This file divides the scratch memory of an AMX task.
 */
#ifndef FLASH_KERNELS_CPU_AMX_SCRATCH_H
#define FLASH_KERNELS_CPU_AMX_SCRATCH_H

#include "cpu/amx/layout.h"
#include "cpu/cpu_kernel.h"
#include "cpu/cpu_scratch.h"
#include "cpu/tiled/arithmetic.h"

#include <stdbool.h>

/* These are the parts of amx_scratch_size() bytes, each aligned to 64. A strip is 32 rows. */
typedef struct amx_scratch {
    uint16_t *q;        /* [strips][columns][terms.q] squares */
    float *o;           /* [strips][v_columns] squares, not normalised */
    float *s;           /* [chunk] squares: scores of a strip */
    float *s_block;     /* [keys] squares: scores of a strip against a block, for raise_item() */
    uint16_t *p[2];     /* [keys][terms.keys] squares: exp2(score - maximum) */
    uint16_t *rows;     /* rows to transpose: amx_row_squares() */
    float *sum;         /* [rows], of P */
    float *maximum;     /* [rows], largest score at an earlier time, in units of log2 (softmax.h);
                         * -infinity: none was seen */
    float *reference;   /* [rows], reference maximum: `maximum`, or 0 where that is -infinity */
    int32_t *begin;     /* [rows], keys that the row sees: begin ... end - 1 */
    int32_t *end;       /* [rows] */
    uint16_t *block;    /* a block of packed keys */
    int64_t d;          /* of Q and K */
    int64_t d_v;        /* of V and O */
    int64_t columns;    /* squares along d */
    int64_t v_columns;  /* squares along d_v */
    int64_t keys;       /* squares of a block */
    int64_t block_size; /* elements of a block of packed keys, its masks included */
    amx_terms_t terms;
    int32_t chunk;      /* squares of scores at a time */
    int32_t block_keys; /* B_c */
    int64_t n_rows;
    int64_t n_strips;
    flash_bias_row_t *bias_rows; /* [rows], where there is a bias */
} amx_scratch_t;

ALWAYS_INLINE void *take_bytes(char **memory, int64_t size) {
    char *taken = *memory;
    *memory += size;
    return taken;
}

ALWAYS_INLINE amx_scratch_t amx_divide_scratch(void *memory, const flash_config_t *config,
                                               head_dims_t dims, amx_terms_t terms,
                                               int64_t n_rows) {
    char *rest = memory;
    const int64_t strips = (int64_t)amx_squares(cpu_scratch_rows(config->B_r, n_rows));
    const int64_t rows = strips * AMX_SQUARE;
    amx_scratch_t t = {.d = dims.qk, .d_v = dims.v, .n_rows = n_rows, .block_keys = config->B_c};
    t.columns = (int64_t)amx_squares(dims.qk);
    t.v_columns = (int64_t)amx_squares(dims.v);
    t.keys = (int64_t)amx_squares(config->B_c);
    t.chunk = amx_chunk(config, dims.v);
    t.terms = terms;
    t.block_size = (int64_t)amx_block_size(config, dims) / 2;
    t.n_strips = (int64_t)amx_squares(n_rows);
    t.q = take_bytes(&rest, strips * t.columns * terms.q * AMX_OPERAND_BYTES);
    t.o = take_bytes(&rest, strips * t.v_columns * AMX_RESULT_BYTES);
    t.block = take_bytes(&rest, (int64_t)amx_block_size(config, dims));
    t.s_block = take_bytes(&rest, t.keys * AMX_RESULT_BYTES);
    t.s = take_bytes(&rest, t.chunk * AMX_RESULT_BYTES);
    for (int i = 0; i < 2; i++)
        t.p[i] = take_bytes(&rest, t.keys * terms.keys * AMX_OPERAND_BYTES);
    t.rows = take_bytes(&rest, (int64_t)amx_row_squares(dims, terms) * AMX_OPERAND_BYTES);
    t.sum = take_bytes(&rest, rows * 4);
    t.maximum = take_bytes(&rest, rows * 4);
    t.reference = take_bytes(&rest, rows * 4);
    t.begin = take_bytes(&rest, rows * 4);
    t.end = take_bytes(&rest, rows * 4);
    t.bias_rows = take_bytes(&rest, rows * (int64_t)sizeof *t.bias_rows);
    return t;
}

ALWAYS_INLINE float *result_row(float *square, int64_t r) {
    return square + r * AMX_SQUARE;
}

#endif
