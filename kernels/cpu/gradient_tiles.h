/*
 * Products of gradients on tile registers take whole tiles. It is plain C, since the host library
 * computes sizes, too.
 */
#ifndef FLASH_KERNELS_CPU_GRADIENT_TILES_H
#define FLASH_KERNELS_CPU_GRADIENT_TILES_H

#include <stdint.h>

/* Rows of a tile product, two tiles; also its elements along the sum, 16 words of two bf16. */
enum { GRADIENT_TILE = 32 };

/* Returns n, rounded up to whole tiles. */
static inline int64_t gradient_tiles(int64_t n) {
    return (n + GRADIENT_TILE - 1) / GRADIENT_TILE * GRADIENT_TILE;
}

#endif
