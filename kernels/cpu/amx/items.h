/*
 * This file makes a sequence of items of a task's work. An item is a strip of 32 rows against a
 * block of keys; a block has an item for every strip that sees some of it, and from which no mask
 * hides all of that.
 */
#ifndef FLASH_KERNELS_CPU_AMX_ITEMS_H
#define FLASH_KERNELS_CPU_AMX_ITEMS_H

#include "cpu/amx/bias.h"
#include "cpu/amx/multiply.h"
#include "cpu/amx/softmax.h"

/* These are the keys that some row of a strip sees, and those that all of its rows see. Either
 * range may be empty. */
typedef struct strip_keys {
    flash_range_t any;
    flash_range_t common;
} strip_keys_t;

/* These are the keys in holes of the two blocks that items are in at a time; block i has entry i %
 * 2. */
typedef struct amx_holes {
    cpu_holes_t entry[2];
    const cpu_holes_t *of_block; /* of the present block; NULL: no key of it lies in one */
} amx_holes_t;

/* This is a task's state while it goes through consecutive blocks of packed keys. */
typedef struct amx_run {
    const amx_scratch_t *t;
    const flash_params_t *p;
    const cpu_task_t *task;
    amx_holes_t *holes;
    const strip_keys_t *strips;
    softmax_rule_t rule;
    const flash_bias_t *bias;
    void *packed;   /* its blocks */
    int32_t key;    /* of block 0 */
    int64_t block;  /* of the next item */
    int64_t n_left; /* blocks, with that of the next item */
    int64_t strip;  /* of the next item */
    int buffer;
    uint32_t started;  /* strips, a bit each */
    operands_t loaded; /* in the tile registers */
    uint32_t *bad;     /* [strips], a bit for each row that is to be recomputed */
} amx_run_t;

/* Finds the present block's keys in holes. */
static inline void find_holes(amx_run_t *run) {
    const int32_t key = run->key + (int32_t)run->block * run->t->block_keys;
    const flash_range_t rest = {key, run->task->sequence.len_k};
    run->holes->of_block = cpu_holes_of(run->p, run->task, cpu_first_keys(rest, run->t->block_keys),
                                        &run->holes->entry[run->block % 2]);
}

/* Leaves out squares at both ends of some of the present block whose keys all lie in holes. */
static inline flash_range_t squares_to_read(const cpu_holes_t *holes, flash_range_t squares) {
    while (squares.begin < squares.end && holes->word[squares.begin] == UINT32_MAX)
        squares.begin++;
    while (squares.begin < squares.end && holes->word[squares.end - 1] == UINT32_MAX)
        squares.end--;
    return squares;
}

/* Says whether the strip sees keys of the present block, and makes the item if it does. Squares
 * that holes or a mask hide at its ends are left out. */
ALWAYS_INLINE bool set_item(amx_run_t *run, int64_t strip, amx_item_t *item) {
    const amx_scratch_t *t = run->t;
    const flash_range_t any = run->strips[strip].any;
    const int32_t key = run->key + (int32_t)run->block * t->block_keys;
    const int32_t begin = max32(any.begin - key, 0);
    const int32_t end = min32(any.end - key, t->block_keys);
    if (begin >= end)
        return false;
    flash_range_t squares = {begin / AMX_SQUARE, (end + AMX_SQUARE - 1) / AMX_SQUARE};
    if (run->holes->of_block)
        squares = squares_to_read(run->holes->of_block, squares);
    if (run->bias->mask != NULL)
        squares = shown_squares(t, run->bias, strip, key, squares);
    if (squares.begin >= squares.end)
        return false;
    run->buffer ^= 1;
    *item = (amx_item_t){.block = amx_block_at(t, run->packed, run->block),
                         .strip = strip,
                         .key = key,
                         .first = squares.begin,
                         .last = squares.end,
                         .holes = run->holes->of_block,
                         .n_chunks = (squares.end - squares.begin + t->chunk - 1) / t->chunk,
                         .buffer = run->buffer,
                         .starts = !(run->started >> strip & 1)};
    run->started |= 1u << strip;
    return true;
}

/* Makes the next item, or returns false: there are no more. */
static inline bool next_item(amx_run_t *run, amx_item_t *item) {
    for (; run->n_left > 0; run->n_left--, run->block++) {
        if (run->strip == 0)
            find_holes(run);
        while (run->strip < run->t->n_strips)
            if (set_item(run, run->strip++, item))
                return true;
        run->strip = 0;
    }
    return false;
}

#endif
