/*
 * This file chooses the micro-kernel of gradients' products, and says what of an operand it takes
 * at once: vectors (multiply.h), or tiles where a family has GRADIENTS_ON_TILES.
 */
#ifndef FLASH_KERNELS_CPU_TILED_GRADIENT_MULTIPLY_H
#define FLASH_KERNELS_CPU_TILED_GRADIENT_MULTIPLY_H

#include "cpu/gradient_tiles.h"
#include "cpu/tiled/multiply.h"

#ifndef GRADIENTS_ON_TILES
#define GRADIENTS_ON_TILES 0
#endif

#if GRADIENTS_ON_TILES
#include "cpu/amx/gradient_multiply.h"
#endif

enum {
    PRODUCT_ROWS = GRADIENTS_ON_TILES ? GRADIENT_TILE : TILE_ROWS,
    /* Words along the sum, of which a product takes a multiple. */
    PRODUCT_WORDS = GRADIENTS_ON_TILES ? GRADIENT_TILE / 2 : 1,
    /* Keys of dK and dV for which the rows are found that see some of them. */
    PRODUCT_KEYS = GRADIENTS_ON_TILES ? TILE_COLUMNS : TILE_ROWS
};

/* Returns the words of n elements that products take. */
static inline int64_t product_words(int64_t n) {
    return round_up(count_words(n), PRODUCT_WORDS);
}

/* Returns the bytes that a call of the micro-kernel prefetches. */
ALWAYS_INLINE int64_t product_prefetch_bytes(int64_t depth, int64_t vecs) {
    return GRADIENTS_ON_TILES ? (vecs + 1) / 2 * depth * 32 : depth * PANEL_PREFETCH_BYTES;
}

ALWAYS_INLINE void multiply_words(const tile_product_t *product, int rows, int vecs) {
#if GRADIENTS_ON_TILES
    multiply_on_tiles(product, rows, vecs);
#else
    multiply_packed(product, rows, vecs);
#endif
}

static inline void start_products(void) {
#if GRADIENTS_ON_TILES
    gradient_tiles_configure();
#endif
}

static inline void end_products(void) {
#if GRADIENTS_ON_TILES
    _tile_release();
#endif
}

#endif
