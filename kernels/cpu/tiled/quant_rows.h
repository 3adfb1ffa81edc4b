/*
 * A tile of rows reads quantised blocks where they lie: elements become fp32 in registers, and are
 * multiplied there. More rows would convert them once for each tile, and decode them instead
 * (decoded_block.h).
 *
 * The scales of a block of keys are copied before. A micro-kernel needs each of them in all lanes,
 * where an fp16 gets by three instructions, and an fp32 in memory by none.
 */
#ifndef FLASH_KERNELS_CPU_TILED_QUANT_ROWS_H
#define FLASH_KERNELS_CPU_TILED_QUANT_ROWS_H

#include "cpu/tiled/encoded_rows.h"
#include "cpu/tiled/in_place.h"
#include "cpu/tiled/quant_block.h"
#include "cpu/tiled/scratch.h"
#include "cpu/tiled/types.h"

#include <string.h>

/* These are the rows of a block of keys of one head. Where there are fewer than IN_PLACE_KEYS, the
 * last one stands for the others. */
typedef struct quant_rows {
    const char *row[IN_PLACE_KEYS];
    const char *next[IN_PLACE_KEYS]; /* to prefetch meanwhile */
    float *scales;                   /* [blocks of a row][IN_PLACE_KEYS] */
    float *weights;                  /* [blocks of a row][TILE_ROWS][IN_PLACE_KEYS]: P times scales;
                                      * for V */
} quant_rows_t;

/* Says whether the rows of a head read both K and V so; one alone is faster decoded. It follows
 * from the sequence and the types alone, as bits do. */
ALWAYS_INLINE bool reads_quant_rows(const tile_scratch_t *t, const flash_params_t *p,
                                    int32_t dtype) {
    return has_quant_blocks(dtype) && has_quant_blocks(p->v_dtype) && t->head_rows <= DOT_ROWS;
}

static inline void find_quant_rows(const encoded_keys_t *encoded, quant_rows_t *found) {
    flash_range_t keys = encoded->keys, after = encoded->after;
    int32_t i = 0;
    while (keys.begin < keys.end) {
        encoded_rows_t rows = first_rows(encoded, keys);
        encoded_rows_t next = after.begin < after.end ? first_rows(encoded, after) : rows;
        const int32_t n = min32(rows.n, next.n);
        for (const int32_t end = i + n; i < end; i++) {
            found->row[i] = rows.first;
            found->next[i] = next.first;
            rows.first += rows.stride;
            next.first += next.stride;
        }
        keys.begin += n;
        after.begin += n;
    }
    for (; i < IN_PLACE_KEYS; i++) {
        found->row[i] = found->row[i - 1];
        found->next[i] = found->next[i - 1];
    }
}

/* Copies the scales of rows of d columns, in fp16, to where convert_scales() finds them. */
ALWAYS_INLINE void copy_scales_of(int32_t dtype, const int64_t d, const quant_rows_t *rows) {
    uint16_t *halves = (uint16_t *)(void *)rows->weights;
    for (int32_t i = 0; i < IN_PLACE_KEYS; i++) {
        const char *block = rows->row[i];
        UNROLL for (int64_t b = 0; b < d / FLASH_QUANT_BLOCK; b++) memcpy(
            halves + b * IN_PLACE_KEYS + i, block + b * quant_block_bytes(dtype), sizeof *halves);
    }
}

/* Common head dimensions are compiled as constants. */
ALWAYS_INLINE void copy_scales(int32_t dtype, const int64_t d, const quant_rows_t *rows) {
    if (d == 128)
        copy_scales_of(dtype, 128, rows);
    else if (d == 64)
        copy_scales_of(dtype, 64, rows);
    else
        copy_scales_of(dtype, d, rows);
}

/* Finds the rows and copies their scales. scratch has room for 8 d numbers. */
ALWAYS_INLINE void start_rows_of(int32_t dtype, const encoded_keys_t *encoded, float *scratch,
                                 quant_rows_t *rows) {
    rows->scales = scratch;
    rows->weights = scratch + encoded->d / FLASH_QUANT_BLOCK * IN_PLACE_KEYS;
    find_quant_rows(encoded, rows);
    copy_scales(dtype, encoded->d, rows);
}

NEVER_INLINE void start_q8_0(const encoded_keys_t *encoded, float *scratch, quant_rows_t *rows) {
    start_rows_of(FLASH_DTYPE_Q8_0, encoded, scratch, rows);
}

NEVER_INLINE void start_q4_0(const encoded_keys_t *encoded, float *scratch, quant_rows_t *rows) {
    start_rows_of(FLASH_DTYPE_Q4_0, encoded, scratch, rows);
}

static inline void start_quant_rows(const encoded_keys_t *encoded, float *scratch,
                                    quant_rows_t *rows) {
    if (keys_are(encoded->from.dtype, FLASH_DTYPE_Q8_0))
        start_q8_0(encoded, scratch, rows);
    else if (keys_are(encoded->from.dtype, FLASH_DTYPE_Q4_0))
        start_q4_0(encoded, scratch, rows);
}

/* Converts the scales to fp32. Something has to be computed since they were copied: a processor
 * waits where it loads at once what it has just stored in parts. */
ALWAYS_INLINE void convert_scales(const quant_rows_t *rows, const int64_t d) {
    const uint16_t *halves = (const uint16_t *)(const void *)rows->weights;
    for (int64_t i = 0; i < d / FLASH_QUANT_BLOCK * IN_PLACE_KEYS; i += VEC_WIDTH)
        vec_store(FLASH_DTYPE_FP32, rows->scales + i, vec_load(FLASH_DTYPE_FP16, halves + i));
}

/* Prefetches a row of d columns. */
ALWAYS_INLINE void prefetch_quant_row(int32_t dtype, const int64_t d, const char *row) {
    const int64_t bytes = key_bytes(dtype, d);
    prefetch_part(row, bytes, STEPS_NEAR);
    prefetch_line_to(row + bytes - 1, STEPS_NEAR);
}

#endif
