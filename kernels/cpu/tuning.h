/*
 * These constants choose how tasks are cut, shared and computed on a CPU. None of them changes what
 * a row of O means; those under "Splits" change its bits, since they say where sums are cut. Limits
 * that keep numbers in range stay beside the code that needs them.
 *
 * Each says where its value is from: the machine on which it was measured, as docs/performance.md
 * names it, and the name in quotes under which docs/design/cpu.md has the measurements.
 */
#ifndef FLASH_KERNELS_CPU_TUNING_H
#define FLASH_KERNELS_CPU_TUNING_H

enum { KIB = 1024, MIB = 1024 * 1024 };

enum {
    /* Bytes of a cache line on every processor that the library has kernels for. */
    CACHE_LINE = 64
};

/* ---- Splits: several tasks share the keys of a sequence that has few rows ------------------- */
enum {
    /* Minimum keys of a split. Tasks of 256 keys of 8 heads spend a tenth of their time
     * on Q, partial results and first maxima (Sapphire Rapids, "Keys in place"). */
    SPLIT_MIN_KEYS = 256,
    /* Minimum keys of a split per packed row, so that partials take little memory next to keys. 8
     * are 0.91 to 1.00 times as fast, 32 are 0.90 to 1.08 (Emerald Rapids, "Some queries and many
     * keys"). */
    SPLIT_ROW_KEYS = 16,
    /* Minimum keys of a split per packed row where a task has several blocks of B_r rows
     * (Emerald Rapids, same heading). */
    SPLIT_BLOCKS_KEYS = 8,
    /* Minimum keys of a split beyond SPLIT_ENOUGH splits: longer splits are less work, 1.04 to
     * 1.08 of 256 at 32768 keys (Sapphire Rapids); 1024 and 2048 are 0.94 to 1.05 times as fast. */
    SPLIT_LONG_KEYS = 512,
    /* Splits of a sequence beyond which they are long. Estimated: several for every core. */
    SPLIT_ENOUGH = 128,
    /* Maximum splits of all heads of a sequence. Estimated: enough for every core of a
     * large machine, and partial results stay few. */
    SPLIT_MAX_TASKS = 512,
    /* Maximum bytes of a head's partial results, unless it would not be split then.
     * 272 rows of 512 columns have 120 splits. Not measured: every sequence of a batch may be as
     * long as the longest, and has partial results of its own. */
    SPLIT_MAX_BYTES = 64 * MIB,
    /* Minimum splits of all heads of a sequence where tasks have several blocks of B_r
     * rows. With fewer, blocks of rows that share packed keys are better (2 splits of one head are
     * 0.41 to 0.58 times as fast with 8 and 16 threads, Emerald Rapids, "Some queries and many
     * keys"). */
    SPLIT_BLOCKS_TASKS = 24,
    /* The keys of a split are a multiple of this. Estimated: whole blocks of keys in place,
     * whichever of their sizes a kernel has. */
    SPLIT_STEP = 64,
    /* Maximum blocks of B_r rows of a task of split keys. Packing a block of keys for four
     * blocks of rows costs less than writing all packed keys to memory and reading them again
     * (Emerald Rapids, "Some queries and many keys"). */
    SPLIT_BLOCKS = 4
};

/* ---- Rows of a task ------------------------------------------------------------------------- */
enum {
    /* Maximum rows of a task that reads K and V in place; with more, packing pays. 12 rows
     * in place are 0.97 to 1.74 times as fast as packed (Zen 5, "More rows in place"). */
    FEW_ROWS = 12,
    /* Maximum rows of such a task of split keys, which are many; it may have several heads in the
     * order of memory: of 16 bits, and of fp32. 16 rows are 1.2 to 1.7, 24 rows 1.2 to 1.5
     * times as fast (Zen 5); 32 rows are 0.99 to 1.3 there and slower on Emerald Rapids. */
    FEW_ROWS_SPLIT = 24,
    FEW_ROWS_SPLIT_FP32 = 16,
    /* A task of vectors has whole blocks of B_r rows, or a part that is a multiple of these rows,
     * four tiles of six. So each row is computed in the same way, with the same bits. */
    VECTOR_ROW_UNIT = 24,
    /* Maximum rows of a task of vectors: SPLIT_BLOCKS of the largest B_r. */
    VECTOR_ROWS_MAX = 4096,
    /* Maximum blocks of B_r rows of a task of AMX where keys are not split. Tiles multiply
     * faster than packed keys come from beyond a level 2 cache, and several blocks of rows read
     * them once. 512 and 1024 rows are 1.00 to 1.04 times as fast as 256 at 4096 keys, 1.03 to 1.07
     * at 8192 (Emerald Rapids). */
    AMX_TASK_BLOCKS = 4,
    /* Maximum rows of a task of AMX. Estimated: their Q and O and a block of keys fit a
     * level 2 cache. */
    AMX_ROWS_MAX = 1024,
    /* Maximum rows of a task that AMX leaves to vectors, where it is not decoded on tiles.
     * Estimated: a square of 32 rows would be padding mostly. */
    AMX_VECTOR_ROWS = 12,
    /* Minimum and maximum rows of a head that AMX decodes on tiles. 1 row is 0.92 to 0.96 times as
     * fast as on vectors, 17 to 24 are 0.96 to 1.08 times as fast as packed (Emerald Rapids, "Rows
     * of several queries"). */
    AMX_DECODE_MIN_ROWS = 2,
    AMX_DECODE_MAX_ROWS = 16,
    /* Minimum keys of a task that decodes on tiles; with fewer, vectors are as fast (Sapphire
     * Rapids). */
    AMX_DECODE_MIN_KEYS = 64,
    /* Minimum tasks per thread of a call whose tasks have several blocks of rows, so that all
     * threads end at about the same time. With 16 tasks each they are 0.96 to 0.99 times as fast (8
     * and 16 threads, Emerald Rapids). */
    LARGE_TASKS_PER_THREAD = 32
};

/* ---- Packed keys ---------------------------------------------------------------------------- */
enum {
    /* Maximum bytes of packed keys in all, unless a single head needs more. Not measured:
     * a process should not double its memory. */
    PACKED_MAX_BYTES = 64 * MIB,
    /* Maximum MiB of packed keys that the tasks of a head share; where all of them have more, each
     * packs its keys for itself. Not measured: what a call asks for must not grow with a bound
     * on lengths without end. */
    SHARED_MAX_MIB = 1024,
    /* Maximum bytes of packed keys of a whole head, which a single worker packs and attends to: a
     * level 2 cache of 2 MB keeps them beside a task. With two threads heads of 0.5 MB are
     * 1.1 to 1.4 times as fast, those of 1 and 2 MB 0.7 to 1.0 (Emerald Rapids, "Whole heads"). */
    WHOLE_HEAD_MAX_BYTES = 768 * KIB,
    /* Maximum bytes of packed keys of the heads that a worker takes by turns. It does so where the
     * heads of a token share memory pages, each of which it then finds once for all of them
     * (Sapphire Rapids, "Rows one after the other"). */
    TURNS_MAX_BYTES = 1152 * KIB,
    /* Minimum rounds of whole heads of a worker, so that slower workers end with
     * the others. Two are 0.88 to 0.91 times as fast with four threads (Emerald Rapids, "Whole
     * heads"). */
    WHOLE_MIN_ROUNDS = 4
};

/* ---- Heads of a task that splits the keys --------------------------------------------------- */
enum {
    /* Maximum bytes per key of all heads of a task where keys are read in blocks: a level
     * 2 cache keeps them. 8 KB are 0.66 to 1.05 times as fast (Zen 5, "Longer runs of memory"). */
    HEADS_BLOCKS_BYTES = 4 * KIB,
    /* Maximum bytes per key of all heads of a task where keys are read in steps: 8 KB are 1.0
     * to 1.19 times as fast as 4 KB, 16 KB 0.9 to 1.05 of that (Zen 5 and Emerald Rapids, same
     * heading). */
    HEADS_STEPS_BYTES = 8 * KIB,
    /* Minimum tasks per thread; with fewer, tasks have fewer heads. Estimated. */
    HEADS_TASKS_PER_THREAD = 2,
    /* Parts of a task at the end of a call, one task of every second thread, so that threads end at
     * about the same time: 1.0 to 1.03 with 2 threads, up to 1.10 with 16 (Emerald Rapids); 0.94 to
     * 1.04 with 2 threads of a Xeon with AMX, where 2048 keys of 32/32 heads lose. */
    LAST_PARTS = 4
};

/* ---- Gradients ------------------------------------------------------------------------------ */
enum {
    /* Maximum blocks of B_r rows of a task of dQ, for which a block of keys is packed once.
     * Estimated: packing is less than a tenth of the products then. */
    GRADIENT_TASK_BLOCKS = 4,
    /* Maximum MiB of scratch of a worker with joint tasks. Not measured: a process should not
     * double its memory. 32768 rows of 128 columns have 94. */
    GRADIENT_JOINT_MAX_MIB = 128,
    /* Products of a joint task, and of one of dQ and one of dK and dV together. */
    GRADIENT_JOINT_PRODUCTS = 5,
    GRADIENT_PRODUCTS = 7
};

/* ---- Threads -------------------------------------------------------------------------------- */

/* A problem of fewer multiplications is not shared. Estimated: about what waking a thread costs. */
#define SHARE_MIN_MULTIPLICATIONS 1e6

/* ---- Keys in place -------------------------------------------------------------------------- */
enum {
    /* Keys of a block. What is prefetched must neither come late nor be gone when it is
     * used. Blocks of 128 are 0.5 to 0.9 times as fast (Zen 5, "Blocks of 32 keys"). */
    IN_PLACE_KEYS = 32,
    /* Keys of a block where nothing is prefetched (Zen 5, "Steps in every x86 family"). */
    SINGLE_ROW_KEYS = 64,
    /* Keys of a tile of scores; a step has a multiple of them. */
    STEP_UNIT = 4,
    /* Keys whose distance in bytes is a multiple of this share few sets of a level 1 cache of 32 or
     * 48 KB. They are read in steps, up to 2.2 times as fast (Zen 5, same heading). */
    FEW_SETS_BYTES = 1024,
    /* Bytes of K or V, of all heads, that few rows read in a step, before they prefetch as many.
     * 6, 12 and 16 KB are 0.84 to 1.12 times as fast (Zen 5, "Steps of keys"). 0: the family reads
     * whole blocks of a head; on NEON steps were never timed. */
    AVX2_STEP_BYTES = 8 * KIB,
    AVX512_STEP_BYTES = 8 * KIB,
    AVX512_BF16_STEP_BYTES = 8 * KIB,
    NEON_STEP_BYTES = 0,
    /* How many times as long a step is where a head has one row, of 16 bits: one row is through a
     * step sooner than several, and memory takes as long. 1.03 to 1.17 from memory with 1024 keys
     * and more, 0.99 to 1.06 from the caches (a Xeon with AMX, "Steps of single rows"). */
    SINGLE_ROW_STEP_FACTOR = 2,
    /* Bytes of a step where a head has one row, of fp32, and nothing is prefetched. A
     * vector of K is multiplied once then: the processor looks far enough ahead for itself, and
     * prefetching only costs. Rows of 16 bits lose by that where keys come from memory ("Slower
     * alternatives"). 0: steps are like those of other rows. */
    AVX512_SINGLE_ROW_STEP_BYTES = 32 * KIB,
    /* Maximum bytes of O of the heads of a step, in fp32, per byte of the step. O is loaded and
     * stored in each step, and a level 1 cache has to hold it together with two steps. More heads
     * are 0.82 and 0.96 times as fast (Zen 5, "Less between the products"). */
    STEP_O_FACTOR = 2
};

/* ---- Prefetching ---------------------------------------------------------------------------- */
enum {
    /* Keys between those that are packed and those that are prefetched meanwhile: 8, 32 and 64
     * keys are 0.92 to 1.05 times as fast (Zen 5). */
    PACK_PREFETCH_KEYS = 16,
    /* Queries likewise: without, 128 queries against 128 keys are 0.96 to 0.98 times as fast
     * where Q is in memory (a Xeon with AMX). */
    PREFETCH_QUERIES = 16,
    /* Bytes of the next panel of packed keys that each step of depth prefetches: 16 tiles of
     * rows prefetch a whole panel of 64 columns. A line every fourth step is 0.97 to 0.99 times as
     * fast, none 0.96 at 4096 keys (Sapphire Rapids, "Prefill with vectors"). */
    PANEL_PREFETCH_BYTES = 16,
    /* Rows of Q, K and V between those that AMX packs and those it prefetches: 3, 6 and 10 are 0.94
     * to 1.03 times as fast (Sapphire Rapids, "Rows one after the other"). */
    AMX_PREFETCH_ROWS = 4,
    /* Rows, of the 32 of the next block of K that AMX decodes, that are prefetched during the
     * scores, and of V during P V; the others are prefetched during the softmax, since a cache
     * waits for a limited number of lines at once. 8 and 16 are 0.84 to 1.00, 20 and 28 are 0.95 to
     * 0.99 times as fast (Emerald Rapids, "Prefetching beside the softmax"). */
    AMX_DECODE_PREFETCH_ROWS = 24
};

/* ---- AMX ------------------------------------------------------------------------------------ */
enum {
    /* Rows and columns of a square, two tiles each: the instruction set's own size. */
    AMX_SQUARE = 32,
    /* Maximum squares of scores that are computed at a time: more push P and Q out of a level 1
     * cache of 48 KB (Sapphire Rapids). */
    AMX_CHUNK_MAX = 4
};

#endif
