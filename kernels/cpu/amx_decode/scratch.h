/*
 * This file divides the scratch memory of a task that decodes, and says what its tile registers
 * hold.
 */
#ifndef FLASH_KERNELS_CPU_AMX_DECODE_SCRATCH_H
#define FLASH_KERNELS_CPU_AMX_DECODE_SCRATCH_H

#include "cpu/amx/scratch.h"
#include "cpu/amx/tiles.h"

#include <stdbool.h>

/* These are the parts of a task's scratch memory. */
typedef struct decode_scratch {
    uint16_t *q;   /* [heads][columns][16][R][2], pairs of columns */
    float *o;      /* [heads][columns][2][R][16], even and odd columns, not normalised */
    float *origin; /* [heads][16], what a lane's scores are relative to, in units of log2 */
    float *sum;    /* [heads][16], of P */
    float *s;      /* [16][2][R], of keys 0 ... 15 and 16 ... 31 */
    uint16_t *p;   /* [2][2][R][16][2], of the same keys, for even and for odd columns */
    uint16_t *k_edge, *v_edge; /* [32][d], a block of keys that not all rows see (rows.h) */
    int64_t d;
    int64_t columns; /* squares along d */
    int64_t n_rows;
    bool apart; /* even and odd columns of O are computed one after the other */
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
    t.p = take_bytes(&rest, 4 * R * TILE_ROW_BYTES);
    t.k_edge = take_bytes(&rest, AMX_SQUARE * d * 2);
    t.v_edge = take_bytes(&rest, AMX_SQUARE * d * 2);
    return t;
}

/* Configures the tiles: 0 holds scores of 16 keys, 1 their K or V, 2 Q^T, 3 and 4 P of the first
 * and the last 16 keys, 5 O. With 16 rows, odd columns have tiles of their own: 6 and 7 hold their
 * P, 0 their O. */
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
