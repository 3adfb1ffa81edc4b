/*
 * The constants that choose how tasks are cut, shared and computed on a CPU: each with its unit,
 * and where its value comes from. None of them changes what a row of O means; those under "Splits"
 * change its bits, since they say where sums are cut. Limits that keep numbers in range stay beside
 * the code that needs them.
 *
 * Processors: A is an AMX machine as Sapphire Rapids, B one as Emerald Rapids (both 2 MB of level 2
 * cache per core), Zen 4 and Zen 5 are AMD's (1 MB). docs/design/cpu.md has the measurements under
 * the name in quotes, docs/performance.md the machines.
 */
#ifndef FLASH_KERNELS_CPU_TUNING_H
#define FLASH_KERNELS_CPU_TUNING_H

enum { KIB = 1024, MIB = 1024 * 1024 };

enum {
    /* Bytes of a cache line, of every processor that the library has kernels for. */
    CACHE_LINE = 64
};

/* ---- Splits: several tasks share the keys of a sequence that has few rows ---------------------
 */
enum {
    /* Keys that a split has at least. Tasks of 256 keys of 8 heads spend a tenth of
     * their time on Q, partial results and first maxima (A, "Keys in place"). */
    SPLIT_MIN_KEYS = 256,
    /* Keys per packed row that a split has at least, so that partial results are few beside keys.
     * 8 are 0.91 to 1.00 times as fast, 32 are 0.90 to 1.08 (B, "Some queries and many keys"). */
    SPLIT_ROW_KEYS = 16,
    /* The same where a task has several blocks of B_r rows (B, same heading). */
    SPLIT_BLOCKS_KEYS = 8,
    /* Keys that a split has at least beyond SPLIT_ENOUGH splits, which is less work in all: 1.04 to
     * 1.08 of 256 at 32768 keys (A); 1024 and 2048 are 0.94 to 1.05 times as fast as 512. */
    SPLIT_LONG_KEYS = 512,
    /* Splits of all heads of a sequence from which on they are long. Estimated: several for every
     * core. */
    SPLIT_ENOUGH = 128,
    /* Splits of all heads of a sequence, at most. Estimated: enough for every core of a large
     * machine, and partial results stay few. */
    SPLIT_MAX_TASKS = 512,
    /* Splits of all heads of a sequence, at least, where tasks have several blocks of B_r rows:
     * with fewer, blocks of rows that share packed keys are the better tasks (2 splits of one head
     * are 0.41 to 0.58 times as fast with 8 and 16 threads, B, "Some queries and many keys"). */
    SPLIT_BLOCKS_TASKS = 24,
    /* Keys of a split are a multiple of this. Estimated: whole blocks of keys in place, whichever
     * of their sizes a kernel has. */
    SPLIT_STEP = 64,
    /* Blocks of B_r rows of a task that splits the keys, at most: packing a block of keys for four
     * blocks of rows costs less than the way of all packed keys to memory and back (B, "Some
     * queries and many keys"). */
    SPLIT_BLOCKS = 4
};

/* ---- Rows of a task ---------------------------------------------------------------------------
 */
enum {
    /* Rows of a task that reads K and V in place, at most: to pack keys would cost more. 12 rows in
     * place are 0.97 to 1.74 times as fast as packed (Zen 5, "More rows in place"). */
    FEW_ROWS = 12,
    /* The same where keys are split, since they are many, and such a task may have several heads in
     * the order of memory: of 16 bits, and of fp32. 16 rows are 1.2 to 1.7, 24 rows 1.2 to 1.5
     * times as fast (Zen 5); 32 rows are 0.99 to 1.3 there and slower on B. */
    FEW_ROWS_SPLIT = 24,
    FEW_ROWS_SPLIT_FP32 = 16,
    /* A task of vectors has whole blocks of B_r rows, or a part that is a multiple of these rows,
     * four tiles of six: what is done to a row is the same then, and so are its bits. */
    VECTOR_ROW_UNIT = 24,
    /* Rows of a task of vectors at most: SPLIT_BLOCKS of the largest B_r. */
    VECTOR_ROWS_MAX = 4096,
    /* Blocks of B_r rows per task of AMX, at most, where keys are not split: the tiles multiply
     * faster than packed keys come from beyond a level 2 cache, and several blocks of rows read
     * them once. 512 and 1024 rows are 1.00 to 1.04 times as fast as 256 at 4096 keys, 1.03 to 1.07
     * at 8192 (B). */
    AMX_TASK_BLOCKS = 4,
    /* Rows of a task of AMX at most. Estimated: their Q and O and a block of keys fit a level 2
     * cache. */
    AMX_ROWS_MAX = 1024,
    /* Rows of a task that AMX leaves to vectors, at most, where they are not decoded on tiles.
     * Estimated: a square of 32 rows would be padding mostly. */
    AMX_VECTOR_ROWS = 12,
    /* Rows of a head that AMX decodes on tiles, keys in place: 1 row is 0.92 to 0.96 times as fast
     * as with vectors, 17 to 24 are 0.96 to 1.08 times as fast as packed (B, "Rows of several
     * queries"). */
    AMX_DECODE_MIN_ROWS = 2,
    AMX_DECODE_MAX_ROWS = 16,
    /* Keys that a task decodes on tiles, at least; with fewer, vectors are as fast (A). */
    AMX_DECODE_MIN_KEYS = 64,
    /* Tasks per thread that a call has at least where a task has several blocks of rows, so that
     * all threads end at about the same time: with 16 tasks each they are 0.96 to 0.99 times as
     * fast (8 and 16 threads, B). */
    LARGE_TASKS_PER_THREAD = 32
};

/* ---- Packed keys ------------------------------------------------------------------------------
 */
enum {
    /* Bytes of packed keys in all, unless a single head needs more. Not measured: a process should
     * not double its memory. */
    PACKED_MAX_BYTES = 64 * MIB,
    /* Bytes of packed keys of a head that one worker packs and attends to alone: what a level 2
     * cache of 2 MB keeps beside a task. With two threads heads of 0.5 MB are 1.1 to 1.4 times as
     * fast, those of 1 and 2 MB 0.7 to 1.0 (B, "Whole heads"). */
    WHOLE_HEAD_MAX_BYTES = 768 * KIB,
    /* Bytes of packed keys of the heads that a worker takes by turns, where the heads of a token
     * share memory pages: a page is found once for all of them (A, "Rows one after the other"). */
    TURNS_MAX_BYTES = 1152 * KIB,
    /* Rounds of whole heads per worker at least: workers that are not equally fast end together.
     * Two rounds are 0.88 to 0.91 times as fast with four threads (B, "Whole heads"). */
    WHOLE_MIN_ROUNDS = 4
};

/* ---- Heads of a task that splits the keys -----------------------------------------------------
 */
enum {
    /* Bytes per key of all heads of a task whose keys are read in blocks, at most: they stay in a
     * level 2 cache. 8 KB are 0.66 to 1.05 times as fast (Zen 5, "Longer runs of memory"). */
    HEADS_BLOCKS_BYTES = 4 * KIB,
    /* The same where keys are read in steps: 8 KB are 1.0 to 1.19 times as fast as 4 KB, 16 KB 0.9
     * to 1.05 of that (Zen 5 and B, same heading). */
    HEADS_STEPS_BYTES = 8 * KIB,
    /* Tasks per thread; with fewer, a task has fewer heads. Estimated. */
    HEADS_TASKS_PER_THREAD = 2,
    /* Tasks in place of one at the end of a call, for every second thread, which ends at about the
     * same time as others then: 1.0 to 1.03 with 2 threads, up to 1.10 with 16 (B); 0.94 to 1.04
     * with 2 threads of a Xeon with AMX, where 2048 keys of 32/32 heads lose. */
    LAST_PARTS = 4
};

/* ---- Threads ----------------------------------------------------------------------------------
 */

/* Multiplications below which a problem is not shared. Estimated: about what waking a thread
 * costs. */
#define SHARE_MIN_MULTIPLICATIONS 1e6

/* ---- Keys in place ----------------------------------------------------------------------------
 */
enum {
    /* Keys of a block: what is prefetched must neither come late nor be gone when it is used.
     * Blocks of 128 are 0.5 to 0.9 times as fast (Zen 5, "Blocks of 32 keys"). */
    IN_PLACE_KEYS = 32,
    /* The same of a lone row where nothing is prefetched (Zen 5, "Steps in every x86 family"). */
    LONE_ROW_KEYS = 64,
    /* Keys of a tile of scores, which those of a step are a multiple of. */
    STEP_UNIT = 4,
    /* Keys whose distance in bytes is a multiple of this share few sets of a level 1 cache of 32 or
     * 48 KB: they are read in steps, up to 2.2 times as fast (Zen 5, same heading). */
    FEW_SETS_BYTES = 1024,
    /* Bytes of K or V of all heads together that few rows read in one step, before they prefetch as
     * many: 6, 12 and 16 KB are 0.84 to 1.12 times as fast (Zen 5, "Steps of keys"). 0: the family
     * reads whole blocks of a head; on NEON steps were never timed. */
    AVX2_STEP_BYTES = 8 * KIB,
    AVX512_STEP_BYTES = 8 * KIB,
    AVX512_BF16_STEP_BYTES = 8 * KIB,
    NEON_STEP_BYTES = 0,
    /* Steps of lone rows of 16 bits are so many times as long: such a row is through a step sooner
     * than rows that share K and V, and memory takes as long. 1.03 to 1.17 from memory with 1024
     * keys and more, 0.99 to 1.06 from the caches (a Xeon with AMX, "Steps of lone rows"). */
    LONE_ROW_STEP_FACTOR = 2,
    /* The same for lone rows of fp32, each of which multiplies a vector of K once: the processor
     * looks far enough ahead for itself, and prefetching only costs. Rows of 16 bits lose by that
     * where keys come from memory ("What did not pay"). 0: they are like other rows. */
    AVX512_LONE_ROW_STEP_BYTES = 32 * KIB,
    /* Bytes of O, in fp32, of the heads that go together, per byte of a step: O comes and goes in
     * each step, and a level 1 cache has to hold it beside two steps. Heads beyond are 0.82 and
     * 0.96 times as fast (Zen 5, "Less between the products"). */
    STEP_O_FACTOR = 2
};

/* ---- Prefetching ------------------------------------------------------------------------------
 */
enum {
    /* Rows of K and V that are prefetched while others are packed, ahead of these: 8, 32 and 64
     * keys are 0.92 to 1.05 times as fast (Zen 5). */
    PACK_PREFETCH_KEYS = 16,
    /* Rows of Q, likewise, while others are copied: without, 128 queries against 128 keys are 0.96
     * to 0.98 times as fast where Q is in memory (a Xeon with AMX). */
    PREFETCH_QUERIES = 16,
    /* Bytes of the next panel of packed keys that each step of depth prefetches: 16 tiles of rows
     * prefetch a whole panel of 64 columns. A line every fourth step is 0.97 to 0.99 times as fast,
     * none 0.96 at 4096 keys (A, "Prefetching O"). */
    PANEL_PREFETCH_BYTES = 16,
    /* Rows of Q, K and V that AMX packs: 3, 6 and 10 are 0.94 to 1.03 times as fast (A, "Rows one
     * after the other"). */
    AMX_PREFETCH_ROWS = 4,
    /* Of the 32 rows of the next block of K that AMX decodes, those that are prefetched beside the
     * scores, and as many of V beside P V; the others are beside the softmax, since caches wait for
     * so many lines at once and no more. 8 and 16 are 0.84 to 1.00, 20 and 28 are 0.95 to 0.99
     * times as fast (B, "Prefetching beside the softmax"). */
    AMX_DECODE_PREFETCH_ROWS = 24
};

/* ---- AMX --------------------------------------------------------------------------------------
 */
enum {
    /* Rows and columns of a square, two tiles wide and high: the instruction set's own size. */
    AMX_SQUARE = 32,
    /* Squares of scores at a time, at most: more push P and Q out of a level 1 cache of 48 KB (A).
     */
    AMX_CHUNK_MAX = 4
};

#endif
