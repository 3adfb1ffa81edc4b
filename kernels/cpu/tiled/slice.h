/*
 * Columns that a call of a micro-kernel takes, and cutting those of V into as many.
 */
#ifndef FLASH_KERNELS_CPU_TILED_SLICE_H
#define FLASH_KERNELS_CPU_TILED_SLICE_H

#include "cpu/tiled/arithmetic.h"
#include "cpu/vector.h"

enum { TILE_COLUMNS = TILE_VECS * VEC_WIDTH };

/* The part of O that one call of the micro-kernel computes: columns of V. */
typedef struct slice {
    int64_t column;
    int vecs;
    int tail; /* elements of the only vector, 0: all */
} slice_t;

/* Of d columns. */
static inline slice_t slice_at(int64_t d, int64_t column) {
    const int64_t vecs = (d - column) / VEC_WIDTH;
    slice_t slice = {column, (int)min64(vecs, TILE_VECS), 0};
    if (vecs == 0) {
        slice.vecs = 1;
        slice.tail = (int)(d - column);
    }
    return slice;
}

#endif
