/*
 * Host and device code agree here on the order in which SM80 kernels compute tiles. Blocks run in
 * the order of their numbers, and a launch ends with the last of them. Under a mask a head's tiles
 * differ in length, and the longest come first, of several heads in turn: then those that are left
 * for the end are short ones of all these heads.
 *
 *     head 0        0 2 4 6 8 10
 *     head 1        1 3 5 7 9 11
 *     head 2        12 14 16 ...
 *
 * Those that take turns are as many heads as have about four times the tiles that a large device
 * runs at a time. Tiles of a head that run at the same time still follow each other, and read the
 * same rows.
 */
#ifndef FLASH_KERNELS_SM80_TILE_ORDER_H
#define FLASH_KERNELS_SM80_TILE_ORDER_H

#include "common/host_device.h"

#include <stdint.h>

enum { SM80_TILES_IN_TURN = 1024 };

typedef struct sm80_tile_number {
    uint32_t head;     /* of all heads of the launch */
    uint32_t position; /* of the head's tiles, the longest first */
} sm80_tile_number_t;

/* Returns the tile of a block, of `heads` heads with `tiles` tiles each. */
FLASH_HOST_DEVICE static inline sm80_tile_number_t
sm80_tile_of_block(uint32_t block, uint32_t tiles, uint32_t heads) {
    const uint32_t most = (SM80_TILES_IN_TURN + tiles - 1) / tiles;
    const uint32_t first = block / (most * tiles) * most;
    const uint32_t in_turn = heads - first < most ? heads - first : most;
    const uint32_t number = block - first * tiles;
    const sm80_tile_number_t tile = {first + number % in_turn, number / in_turn};
    return tile;
}

#endif
