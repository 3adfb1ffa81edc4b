/*
 * Host and device code decide here which weights are dropped, as flash_dropout_t says. One call of
 * Philox decides about eight weights of a patch of 16 queries and 16 keys: those that a lane of a
 * warp holds of two products of mma.sync.
 */
#ifndef FLASH_KERNELS_COMMON_DROPOUT_H
#define FLASH_KERNELS_COMMON_DROPOUT_H

#include "common/params.h"
#include "common/philox.h"

#include <stdbool.h>
#include <string.h>

/* Queries and keys of a patch, and lanes that hold its weights. */
enum { DROPOUT_PATCH = 16, DROPOUT_LANES = 32, DROPOUT_INDEX_BITS = 27 };

FLASH_HOST_DEVICE static inline bool flash_drops(const flash_dropout_params_t *dropout) {
    return dropout->threshold != 0;
}

/* Reads what is added to a number. On the CPU it may have any alignment. */
FLASH_HOST_DEVICE static inline uint64_t flash_load_uint64(const uint64_t *number) {
#ifdef __CUDA_ARCH__
    return *number;
#else
    uint64_t value;
    memcpy(&value, number, sizeof value);
    return value;
#endif
}

/* The decisions about the weights of a query head. */
typedef struct flash_dropout_head {
    uint32_t key_0;
    uint32_t key_1;
    uint32_t head;        /* of the batch */
    uint32_t offset;      /* the lower 32 bits */
    uint32_t offset_high; /* the next 5 bits, above the index of a patch */
} flash_dropout_head_t;

FLASH_HOST_DEVICE static inline flash_dropout_head_t
flash_dropout_head(const flash_dropout_params_t *dropout, int32_t n_heads, int64_t batch_index,
                   int64_t head) {
    const uint64_t seed =
        dropout->seed + (dropout->seed_ptr ? flash_load_uint64(dropout->seed_ptr) : 0);
    const uint64_t offset =
        dropout->offset + (dropout->offset_ptr ? flash_load_uint64(dropout->offset_ptr) : 0);
    flash_dropout_head_t of;
    of.key_0 = (uint32_t)seed;
    of.key_1 = (uint32_t)(seed >> 32);
    of.head = (uint32_t)(batch_index * n_heads + head);
    of.offset = (uint32_t)offset;
    of.offset_high = (uint32_t)(offset >> 32) << DROPOUT_INDEX_BITS;
    return of;
}

/* Returns the counter of a lane of the patch of queries 16 patch_q ... and keys 16 patch_k .... */
FLASH_HOST_DEVICE static inline philox_t flash_dropout_counter(const flash_dropout_head_t *of,
                                                               uint32_t patch_q, uint32_t patch_k,
                                                               uint32_t lane) {
    const philox_t counter = {
        {patch_q | lane << DROPOUT_INDEX_BITS, patch_k | of->offset_high, of->head, of->offset}};
    return counter;
}

FLASH_HOST_DEVICE static inline philox_t flash_dropout_words(const flash_dropout_head_t *of,
                                                             uint32_t patch_q, uint32_t patch_k,
                                                             uint32_t lane) {
    return philox_words(flash_dropout_counter(of, patch_q, patch_k, lane), of->key_0, of->key_1);
}

/* Returns the lane that holds the weight of a query and a key. */
FLASH_HOST_DEVICE static inline uint32_t flash_dropout_lane(int64_t query, int64_t key) {
    return (uint32_t)(query % 8 * 4 + key % 8 / 2);
}

/* Returns the bits of a query and a key, which say that the weight is dropped where they are below
 * the threshold. */
FLASH_HOST_DEVICE static inline uint32_t flash_dropout_bits(const philox_t *words, int64_t query,
                                                            int64_t key) {
    const uint32_t word = words->word[query % 16 / 8 + key % 16 / 8 * 2];
    return key % 2 ? word >> 16 : word & 0xffff;
}

/* Returns what the weight of a query and a key is multiplied by: 0, or 1 / (1 - p). */
FLASH_HOST_DEVICE static inline float flash_dropout_factor(const flash_dropout_params_t *dropout,
                                                           const flash_dropout_head_t *of,
                                                           int64_t query, int64_t key) {
    const philox_t words =
        flash_dropout_words(of, (uint32_t)(query / DROPOUT_PATCH), (uint32_t)(key / DROPOUT_PATCH),
                            flash_dropout_lane(query, key));
    return flash_dropout_bits(&words, query, key) < dropout->threshold ? 0.0f : dropout->scale;
}

#endif
