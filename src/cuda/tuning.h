/*
 * These constants choose kernels, pieces, schedules and copies on CUDA devices. None of them
 * changes what a row of O means; those of pieces change its bits, since they say where sums are
 * cut. Limits of kernels and devices stay beside the code that needs them.
 *
 * Each says where its value is from. "H200" and "H100" are the cards on which it was measured;
 * estimated: it was chosen from sizes. Measurements of which only the card was noted give no
 * figures. All other GPUs take the same values, on which none was timed.
 */
#ifndef FLASH_CUDA_TUNING_H
#define FLASH_CUDA_TUNING_H

#include <stdint.h>

#define TUNING_MIB ((int64_t)1 << 20)

/* ---- Pieces of decoded sequences ------------------------------------------------------------ */
enum {
    /* Minimum keys of a piece, in every decode family. Shorter ones cost more than they save
     * (H200). Of 8,192 keys of 512 columns, pieces of 64 keys take 1.18 times as long (H100). */
    PIECE_MIN_KEYS = 128,

    /* SM80_DECODE: minimum keys of a piece if every multiprocessor has a block without more pieces
     * (H200). */
    SM80_DECODE_LONG_KEYS = 1024,
    /* Eighths of the multiprocessors from which on blocks, one each, are not cut any further
     * (H200). */
    SM80_DECODE_FULL_EIGHTHS = 7,
    /* A share has this many keys under FLASH_FLAG_BATCH_INVARIANT, where only a sequence's own
     * length may count. A sequence has no more pieces than there are multiprocessors for each K/V
     * head: of one sequence of 8 K/V heads, calls take the time of those without the flag (H100).
     */
    SM80_DECODE_INVARIANT_KEYS = 256,
    /* Maximum rows of a K/V head (queries x query heads) that SM80_DECODE serves: with more,
     * reading K and V is no longer what takes time. Estimated: two tiles of mma. */
    SM80_DECODE_MAX_ROWS = 32,

    /* Families that run a block per multiprocessor at a time (decode/plan_rounds.h) cut sequences
     * into pieces of at most this many rounds: a second one, where one would leave many
     * multiprocessors without work. Estimated. */
    ROUNDS_MAX = 2,
    /* Fifths of the time of one round that sequences of one length may take in two rounds, so that
     * the device cuts a batch for two. Estimated. */
    ROUNDS_SECOND_FIFTHS = 4,
    /* Eighths of the multiprocessors that pieces of one round, or parts, give a block, so that the
     * batch is not divided into parts, or is. H200, of 132: parts of 80 tiles of 8,192 keys took
     * 5 % less, and of 64, which are two pieces each, 3 % more. */
    ROUNDS_PIECES_EIGHTHS = 6,
    ROUNDS_PARTS_EIGHTHS = 7,
    /* A share of these families has this many keys under FLASH_FLAG_BATCH_INVARIANT. Their tiles
     * have more rows than those of SM80_DECODE, for which short pieces do not pay. Estimated. */
    ROUNDS_INVARIANT_KEYS = 2048,

    /* Blocks of the kernel that merges pieces, at most, per multiprocessor: each takes part after
     * part, so that a call whose sequences the device does not cut starts few (H200). */
    MERGE_BLOCKS_PER_MULTIPROCESSOR = 8,
    /* Parts of rows per multiprocessor up to which a block merges each, else a warp (H200). */
    MERGE_BLOCK_PARTS = 4
};

/* ---- Times of decode kernels, estimated ----------------------------------------------------- */
enum {
    /* A block of a latent family, for DECODE_UNIT_KEYS keys: the unit of this family's times. */
    MLA_TIME_OF_UNIT = 10,
    /* A block takes this time beside its keys, and the kernel that merges this, in the same unit
     * (H200). */
    MLA_TIME_AROUND_BLOCK = 30,
    MLA_TIME_OF_MERGE = 20,

    /* A block of SM90_WIDE or SM80_WIDE takes these times. */
    WIDE_TIME_OF_UNIT = 10,
    WIDE_TIME_AROUND_BLOCK = 20,
    WIDE_TIME_OF_MERGE = 20,

    /* A tile of 128 rows of SM90 or SM90_DECODE, for DECODE_UNIT_KEYS keys: the unit of these
     * families' times. A tile of 64 rows reads all of K and V too (H200). */
    SM90_DECODE_TIME_OF_128_ROWS = 10,
    SM90_DECODE_TIME_OF_64_ROWS = 7,
    /* A block takes this time beside its keys, and the kernel that merges this, in the same unit
     * (H200). */
    SM90_DECODE_TIME_AROUND_BLOCK = 60,
    SM90_DECODE_TIME_OF_MERGE = 40,
    /* Between rounds, from the third on: nothing runs beside the begin and the end of a block
     * (H200). */
    SM90_DECODE_TIME_BETWEEN_ROUNDS = 160,
    /* A tile of SM90 beside its keys; its blocks take tile after tile (H200). */
    SM90_DECODE_TIME_AROUND_TILE = 40,
    /* Fifths of the time of SM90 up to which SM90_DECODE is taken. Estimates are rough, and
     * SM90_DECODE needs a workspace. */
    SM90_DECODE_MAX_FIFTHS = 4
};

/* ---- Mixed batches -------------------------------------------------------------------------- */
enum {
    /* Rows of a sequence that is decoded, at most: a tile of decode kernels, or two of them where a
     * single query has more rows. */
    MIXED_TILE_ROWS = 16,
    /* Packed keys up to which forward kernels read them as fast as decode kernels do, where every
     * query head has a K/V head of its own (H200). */
    MIXED_PACKED_KEYS = 8192
};

/* ---- Choice among rows of SM80 and SM90 ----------------------------------------------------- */
enum {
    /* SM80: rows of Q that take as long as the steps of a block over K and V. Kernels with B_r 64
     * run at 0.82 of the speed of those with 128: (128 + 36) / 128 over (64 + 36) / 64. */
    SM80_STEP_ROWS = 36,
    /* SM80: mean keys of a row of Q from which on rows with smaller B_c are preferred, as seen at
     * d_head 256. */
    SM80_LONG_KEYS = 1024,

    /* SM90: blocks of keys that take as long as the begin and the end of a tile. */
    SM90_BLOCKS_AROUND_TILE = 2,
    /* SM90: rows of a tile that take as long as what a block of keys costs beside its products.
     * Under a mask it does not count: tiles of more rows compute more there that no row sees
     * (H200). */
    SM90_ROWS_AROUND_BLOCK = 80
};

/* ---- The schedule of SM90 ------------------------------------------------------------------- */

/* Maximum bytes of K and V of the heads of a section, and of the heads that teams compute at the
 * same time: an L2 of 50 MB keeps them beside Q and O (H200). */
#define SM90_SECTION_MAX_BYTES (16 * TUNING_MIB)
#define SM90_TEAM_MAX_BYTES    (20 * TUNING_MIB)

enum {
    /* Minimum tiles of a section, which even out their lengths, even if K and V are more then. */
    SM90_SECTION_MIN_TILES = 256,
    SM90_TEAM_MAX_BLOCKS = 4,
    /* Bundles of tiles that a block has at least, if all sequences are as long as the longest. */
    SM90_BLOCK_MIN_BUNDLES = 4,
    /* Tiles of a block, over SM90_BLOCK_MIN_BUNDLES, from which on bundles have 8 tiles, not 4. */
    SM90_MANY_TILES = 32,
    /* Blocks of B_c keys up to which tiles of a ragged batch take about as long as each other, and
     * blocks of the grid take them in turn; and the same where a block has one tile or two, or
     * where heads share tiles, and for a window in other batches (H200). */
    SM90_EVEN_RAGGED_BLOCKS = 2,
    SM90_EVEN_BLOCKS = 4,
    /* Part of the keys of a sequence that a window shows at most, for nearly all tiles to see all
     * of it: 1 / 4. */
    SM90_EVEN_WINDOW_PARTS = 4
};

/* ---- Masks ahead of SM90 -------------------------------------------------------------------- */

/* Maximum bytes of what is found of a mask; beyond, nothing is left out. Estimated. */
#define SM90_MASK_MAX_BYTES (64 * TUNING_MIB)

enum {
    /* Blocks of B_c keys up to which to look at a mask costs more than to leave out what it hides.
     */
    SM90_MASK_FEW_BLOCKS = 4
};

/* ---- Copies --------------------------------------------------------------------------------- */
enum {
    /* Minimum keys of a box of TMA in pages; shorter boxes are slower than single rows: at d_head
     * 64, 128 and 256 prefill with boxes of 8 keys is 1.09 to 1.45 times as fast as with rows, with
     * boxes of 4 keys 0.7 to 1.06 times (H100). */
    TMA_BOX_MIN_KEYS = 8,
    /* Tokens from which on a block appends whole tokens: with fewer, a token is cut into several
     * blocks, each of which has to find out where its token goes. */
    APPEND_MANY_TOKENS = 1024
};

#endif
