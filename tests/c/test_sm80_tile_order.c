/*
 * The order in which SM80 kernels compute tiles: each tile once, and of heads that take turns no
 * tile before a longer one.
 */
#include "kernels/sm80/tile_order.h"
#include "support.h"

#include <stdlib.h>

static void check_order(uint32_t tiles, uint32_t heads) {
    unsigned char *seen = calloc((size_t)tiles * heads, 1);
    assert_non_null(seen);
    sm80_tile_number_t before = {0, 0};
    for (uint32_t block = 0; block < tiles * heads; block++) {
        const sm80_tile_number_t tile = sm80_tile_of_block(block, tiles, heads);
        assert_true(tile.head < heads && tile.position < tiles);
        assert_false(seen[tile.head * tiles + tile.position]);
        seen[tile.head * tiles + tile.position] = 1;
        /* the next heads begin when all tiles of these are done */
        assert_true(tile.position >= before.position || before.position == tiles - 1);
        before = tile;
    }
    free(seen);
}

TEST(each_tile_is_computed_once) {
    static const uint32_t tiles[] = {1, 2, 3, 31, 64, 600, 1023, 1024, 1025, 3000};
    static const uint32_t heads[] = {1, 2, 7, 32, 1023, 1024, 1025, 2500};
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++)
        for (size_t j = 0; j < sizeof heads / sizeof *heads; j++)
            check_order(tiles[i], heads[j]);
}

TEST(heads_take_turns) {
    /* 1024 tiles are those of 32 heads of 32 */
    assert_int_equal(sm80_tile_of_block(31, 32, 100).head, 31);
    assert_int_equal(sm80_tile_of_block(32, 32, 100).head, 0);
    assert_int_equal(sm80_tile_of_block(32, 32, 100).position, 1);
    assert_int_equal(sm80_tile_of_block(1024, 32, 100).head, 32);
    assert_int_equal(sm80_tile_of_block(1024, 32, 100).position, 0);
    /* the last ones are fewer */
    assert_int_equal(sm80_tile_of_block(96 * 32 + 4, 32, 100).head, 96);
    assert_int_equal(sm80_tile_of_block(96 * 32 + 4, 32, 100).position, 1);
}
