/*
 * This file divides the scratch memory of a decoding task, and says what its tiles hold.
 */
#ifndef FLASH_KERNELS_CPU_AMX_DECODE_SCRATCH_H
#define FLASH_KERNELS_CPU_AMX_DECODE_SCRATCH_H

#include "cpu/amx/scratch.h"
#include "cpu/amx/tiles.h"

#include <stdbool.h>

/* These are the parts of amx_decode_scratch_size() bytes. */
typedef struct decode_scratch {
    uint16_t *q;      /* [heads][columns][16][R][2], pairs of columns */
    float *o;         /* [heads][v_columns][2][R][16], even and odd columns, not normalised */
    float *reference; /* [heads][16], reference maximum of each lane, in units of log2 */
    float *sum;       /* [heads][16], of P */
    float *s;         /* [16][2][R], of keys 0 ... 15 and 16 ... 31 */
    uint16_t *p; /* [2][2][R][16][2], of keys 0 ... 15 and 16 ... 31, for even and odd columns */
    uint16_t *k_edge;  /* [32][d], a block of keys that not all rows see (rows.h) */
    uint16_t *v_edge;  /* [32][d_v] */
    int64_t d;         /* of Q and K */
    int64_t d_v;       /* of V and O */
    int64_t columns;   /* squares along d */
    int64_t v_columns; /* squares along d_v */
    int64_t n_rows;
    bool apart;                  /* even and odd columns of O are computed one after the other */
    flash_bias_row_t *bias_rows; /* [heads][R], where there is a bias */
} decode_scratch_t;

ALWAYS_INLINE decode_scratch_t decode_divide_scratch(void *memory, head_dims_t dims, int64_t n_rows,
                                                     int64_t n_heads, int R) {
    char *rest = memory;
    decode_scratch_t t = {.d = dims.qk,
                          .d_v = dims.v,
                          .columns = dims.qk / AMX_SQUARE,
                          .v_columns = dims.v / AMX_SQUARE,
                          .n_rows = n_rows};
    t.q = take_bytes(&rest, n_heads * t.d * R * 2);
    t.o = take_bytes(&rest, n_heads * t.d_v * R * 4);
    t.reference = take_bytes(&rest, n_heads * 64);
    t.sum = take_bytes(&rest, n_heads * 64);
    t.s = take_bytes(&rest, AMX_SQUARE * R * 4);
    t.p = take_bytes(&rest, 4 * R * TILE_ROW_BYTES);
    t.k_edge = take_bytes(&rest, AMX_SQUARE * t.d * 2);
    t.v_edge = take_bytes(&rest, AMX_SQUARE * t.d_v * 2);
    t.bias_rows = take_bytes(&rest, n_heads * R * (int64_t)sizeof *t.bias_rows);
    return t;
}

/* Configures the tiles for R rows:
 *
 *   0      scores of 16 keys; with 16 rows also O of odd columns
 *   1      16 keys of K or V
 *   2      Q^T
 *   3, 4   P of keys 0 ... 15 and 16 ... 31; with 16 rows for even columns only
 *   5      O; with 16 rows of even columns only
 *   6, 7   P for odd columns, with 16 rows */
ALWAYS_INLINE unsigned decode_configure(int R) {
    tile_config_t config = {.palette = 1};
    const int p_rows = 2 * R < TILE_ROWS_MAX ? 2 * R : TILE_ROWS_MAX;
    for (int i = 0; i < 8; i++) {
        const bool narrow = i == 0 || i == 2, flat = i >= 3;
        config.row_bytes[i] = (uint16_t)(narrow ? R * 4 : TILE_ROW_BYTES);
        config.rows[i] = (uint8_t)(flat ? p_rows : TILE_ROWS_MAX);
    }
    tiles_load_config(&config);
    return flush_subnormals();
}

#endif
