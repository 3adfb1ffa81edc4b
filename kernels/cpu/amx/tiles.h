/*
 * This file configures, loads, stores and releases the tile registers (Intel SDM volume 1, chapter
 * 18). A task configures them when it begins and releases them when it ends.
 *
 *                          6   7     right operand: rows 0 ... 15, 16 ... 31
 *                        +---+---+
 *   left operand:      4 | 0 | 1 |   results
 *   keys (d) 0 ... 15, 5 | 2 | 3 |
 *   16 ... 31            +---+---+
 */
#ifndef FLASH_KERNELS_CPU_AMX_TILES_H
#define FLASH_KERNELS_CPU_AMX_TILES_H

#include "cpu/amx/layout.h"
#include "cpu/vector.h"

#include <immintrin.h>
#include <stdint.h>

enum {
    TILE_ROWS_MAX = 16,
    TILE_ROW_BYTES = 64,
    RESULT_ROW_BYTES = AMX_SQUARE * (int)sizeof(float)
};

typedef struct tile_config {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config_t;

/* Makes subnormal results of the vector unit zero, as tile products do: exp2 of a distant score
 * would otherwise take a hundred cycles. Returns what tiles_release() restores. */
ALWAYS_INLINE unsigned flush_subnormals(void) {
    const unsigned control = _mm_getcsr();
    _mm_setcsr(control | _MM_FLUSH_ZERO_ON);
    return control;
}

/* Configures the tiles. gcc 12 assumes that the instruction reads only the first 8 bytes, and may
 * drop stores to the others. */
ALWAYS_INLINE void tiles_load_config(const tile_config_t *config) {
    __asm__ volatile("" : : "r"(config) : "memory");
    _tile_loadconfig(config);
}

ALWAYS_INLINE unsigned tiles_configure(void) {
    tile_config_t config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = TILE_ROW_BYTES;
        config.rows[i] = TILE_ROWS_MAX;
    }
    tiles_load_config(&config);
    return flush_subnormals();
}

ALWAYS_INLINE void tiles_release(unsigned control) {
    _mm_setcsr(control);
    _tile_release();
}

/* Keeps stores before this in front of tile loads after it, since compilers do not know that tile
 * loads read memory. */
ALWAYS_INLINE void tiles_see_stores(void) {
    __asm__ volatile("" ::: "memory");
}

ALWAYS_INLINE void results_zero(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

/* Loads a square of results past the level 1 cache, which has lost it since it was stored, and gets
 * it again soon. */
ALWAYS_INLINE void results_load(const float *square) {
    _tile_stream_loadd(0, square, RESULT_ROW_BYTES);
    _tile_stream_loadd(1, square + 16, RESULT_ROW_BYTES);
    _tile_stream_loadd(2, square + 16 * AMX_SQUARE, RESULT_ROW_BYTES);
    _tile_stream_loadd(3, square + 16 * AMX_SQUARE + 16, RESULT_ROW_BYTES);
}

ALWAYS_INLINE void results_store(float *square) {
    _tile_stored(0, square, RESULT_ROW_BYTES);
    _tile_stored(1, square + 16, RESULT_ROW_BYTES);
    _tile_stored(2, square + 16 * AMX_SQUARE, RESULT_ROW_BYTES);
    _tile_stored(3, square + 16 * AMX_SQUARE + 16, RESULT_ROW_BYTES);
}

#endif
