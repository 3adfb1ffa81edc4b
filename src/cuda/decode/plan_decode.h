/*
 * The plan of a decode call: the K/V heads of a block, the pieces of a sequence, the blocks of both
 * kernels, and the workspace between them. Making it calls no device. If lengths are on the device,
 * nothing here depends on their bound seqlen_k, except in calls with FLASH_FLAG_BATCH_INVARIANT.
 */
#ifndef FLASH_CUDA_PLAN_DECODE_H
#define FLASH_CUDA_PLAN_DECODE_H

#include "cuda/family.h"
#include "kernels/sm80/decode_kernel.h"

typedef struct decode_plan {
    decode_params_t params; /* without dividers and pointers to the workspace */
    int64_t blocks;         /* of the decode kernel, at most */
    int64_t splits;         /* sequences that are cut, at most */
    int64_t merge_parts;    /* of rows of sequences that are cut, at most */
    int64_t slots;          /* for partial results of this or any smaller call */
} decode_plan_t;

/* The limits of a family's blocks and pieces. */
typedef struct decode_limits {
    int64_t resident;       /* blocks that the device runs side by side */
    int64_t most_blocks;    /* of all pieces of sequences that the host cuts, in any call */
    int32_t known_pieces;   /* of each sequence that the host cuts; 0: computed */
    int32_t batch_pieces;   /* of all sequences that the device cuts; 0: computed */
    int32_t parts;          /* of all keys of the batch, walked by a block each; 0: pieces */
    int32_t most_heads;     /* K/V heads of a block, at most */
    int32_t least_keys;     /* of a piece, at least */
    int32_t long_keys;      /* the same if every multiprocessor has a block */
    int32_t invariant_keys; /* of a share, where only a sequence's own length decides */
} decode_limits_t;

/* Makes the plan of a call for the kernels of any family. */
decode_plan_t plan_decode(const flash_config_t *config, const problem_t *problem,
                          const device_t *device, const decode_limits_t *limits);

decode_plan_t plan_sm80_decode(const flash_config_t *config, const problem_t *problem,
                               const device_t *device);

/* Returns why the device cannot be given the launch of a decode call; NULL if it can. */
const char *plan_decode_obstacle(const cuda_family_t *family, const flash_config_t *config,
                                 const problem_t *problem, const device_t *device);

/* Counts the tiles of B_r rows, with all sequences as long as the longest. */
int64_t plan_decode_tiles(const flash_config_t *config, const flash_params_t *params);

/* Returns the bytes of workspace at any alignment; smaller batches and lengths need no more. */
uint64_t plan_decode_workspace(const decode_plan_t *plan);

/* Points the plan's parameters into the workspace, and completes those that only kernels read. */
void plan_decode_place(decode_plan_t *plan, void *workspace);

#endif
