/*
 * This file cuts the columns of V into slices, one per call of a micro-kernel.
 */
#ifndef FLASH_KERNELS_CPU_TILED_SLICE_H
#define FLASH_KERNELS_CPU_TILED_SLICE_H

#include "cpu/tiled/arithmetic.h"
#include "cpu/vector.h"

enum { TILE_COLUMNS = TILE_VECS * VEC_WIDTH };

/* A slice is the columns of O that one call computes. */
typedef struct slice {
    int64_t column;
    int vecs;
    int tail; /* elements of its only vector, 0: all */
} slice_t;

/* Returns the slice of d columns that begins at `column`. */
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
