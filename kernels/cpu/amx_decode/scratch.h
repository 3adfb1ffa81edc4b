/*
 * The parts of a decoding task's scratch memory, and what its tile registers hold.
 */
#ifndef FLASH_KERNELS_CPU_AMX_DECODE_SCRATCH_H
#define FLASH_KERNELS_CPU_AMX_DECODE_SCRATCH_H

#include "cpu/amx/scratch.h"
#include "cpu/amx/tiles.h"

#include <stdbool.h>

/* Parts of a task's scratch memory. */
typedef struct decode_scratch {
    uint16_t *q; /* [heads][columns][16][R][2], pairs of columns */
    float *o;    /* [heads][2 columns][R][16], not normalised; columns as alternate() leaves them */
    float *origin;  /* [heads][16], what a lane's scores are relative to, in units of log2 */
    float *sum;     /* [heads][16], of P */
    float *s;       /* [32][R] */
    uint16_t *p[2]; /* [R][32], of two blocks in turns */
    uint16_t *v[2]; /* [2 columns][16][16][2], pairs of keys, likewise */
    uint16_t *k_tail, *v_tail; /* [32][d], the last keys, where they do not fill a block */
    int64_t d;
    int64_t columns; /* squares along d */
    int64_t n_rows;
} decode_scratch_t;

ALWAYS_INLINE decode_scratch_t decode_divide_scratch(void *memory, int64_t d, int64_t n_rows,
                                                     int64_t n_heads, int R) {
    char *rest = memory;
    decode_scratch_t t = {.d = d, .columns = d / AMX_SQUARE, .n_rows = n_rows};
    t.q = take_bytes(&rest, n_heads * d * R * 2);
    t.o = take_bytes(&rest, n_heads * d * R * 4);
    t.origin = take_bytes(&rest, n_heads * 64);
    t.sum = take_bytes(&rest, n_heads * 64);
    t.s = take_bytes(&rest, AMX_SQUARE * R * 4);
    for (int i = 0; i < 2; i++) {
        t.p[i] = take_bytes(&rest, AMX_SQUARE * R * 2);
        t.v[i] = take_bytes(&rest, AMX_SQUARE * d * 2);
    }
    t.k_tail = take_bytes(&rest, AMX_SQUARE * d * 2);
    t.v_tail = take_bytes(&rest, AMX_SQUARE * d * 2);
    return t;
}

/* 0 and 1: scores of 16 keys each; 2 and 7: their K; 3: Q^T; 4: P; 5: V; 6: O. */
ALWAYS_INLINE unsigned decode_configure(int R) {
    tile_config_t config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        const bool narrow = i == 0 || i == 1 || i == 3, flat = i == 4 || i == 6;
        config.row_bytes[i] = (uint16_t)(narrow ? R * 4 : TILE_ROW_BYTES);
        config.rows[i] = (uint8_t)(flat ? R : TILE_ROWS_MAX);
    }
    _tile_loadconfig(&config);
    return flush_subnormals();
}

#endif
