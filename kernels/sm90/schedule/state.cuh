/*
 * The scheduler of a block keeps this in shared memory, and nothing else reads or writes it.
 */
#ifndef FLASH_KERNELS_SM90_SCHEDULE_STATE_CUH
#define FLASH_KERNELS_SM90_SCHEDULE_STATE_CUH

#include "sm90/derive.cuh"

enum { WORK_CLASSES = 128 };

/* This is the state of the LPT schedule (ranks.cuh), with an element for each block of the grid. */
typedef struct block_ranks {
    int32_t work[SM90_MAX_BLOCKS];  /* blocks of keys taken so far; only differences matter */
    uint16_t rank[SM90_MAX_BLOCKS]; /* by work, least first: 0 takes a round's longest tile */
    alignas(16) uint32_t class_sizes[WORK_CLASSES];
} block_ranks_t;

/* This is a slice of the batch (ragged.cuh), with an element for each of 32 entries that follow
 * each other. */
typedef struct slice_entries {
    uint32_t end[warp_threads]; /* number of the bundle after the entry's last */
    int32_t len_q[warp_threads];
    int32_t len_k[warp_threads];
    int32_t k_begin[warp_threads];
} slice_entries_t;

typedef struct schedule_state {
    block_ranks_t blocks;    /* with longest_first */
    slice_entries_t entries; /* with varlen */
} schedule_state_t;

#endif
