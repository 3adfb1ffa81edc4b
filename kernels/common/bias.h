/*
 * Host and device code find here what joins the scaled score of a query and a key: ALiBi, and a
 * mask of bits or numbers.
 */
#ifndef FLASH_KERNELS_COMMON_BIAS_H
#define FLASH_KERNELS_COMMON_BIAS_H

#include "common/params.h"
#include "common/sequence.h"
#include "flashattn.h"

#include <float.h>
#include <math.h>

/* One query's row of slopes and mask. */
typedef struct flash_bias_row {
    int64_t at;        /* elements, or words, from the mask's first one to column 0 of the row */
    int32_t first_key; /* the key of column 0 */
    int32_t diagonal;  /* the key at the query's own place, from which ALiBi counts */
    float slope;       /* 0: none */
    float factor;      /* of the mask's numbers */
} flash_bias_row_t;

FLASH_HOST_DEVICE static inline int flash_has_bias(const flash_bias_t *bias) {
    return bias->alibi_slopes != NULL || bias->mask != NULL;
}

/* Reads array[i], a slope or a factor. On the CPU the array may have any alignment. */
FLASH_HOST_DEVICE static inline float flash_load_of_head(const float *array, int64_t i) {
#ifdef __CUDA_ARCH__
    return array[i];
#else
    float value;
    memcpy(&value, (const char *)array + i * (int64_t)sizeof value, sizeof value);
    return value;
#endif
}

/* Returns what a number of the mask adds to a score. -infinity hides the key and 0 adds nothing
 * whatever the factor is, so that blocks of either kind need not be looked at again; no product
 * hides a key. */
FLASH_HOST_DEVICE static inline float flash_scaled_number(float number, float factor) {
    const float product = factor * number;
    const float added = product < -FLT_MAX ? -FLT_MAX : product;
    return number == -INFINITY || number == 0.0f ? number : added;
}

/* Returns the row of query i of a head. number: how many rows of the mask come before it. */
FLASH_HOST_DEVICE static inline flash_bias_row_t
flash_numbered_bias_row(const flash_params_t *p, const flash_sequence_t *s, int64_t batch_index,
                        int64_t head, int64_t i, int64_t number) {
    const flash_bias_t *bias = &p->bias;
    flash_bias_row_t row = {0, bias->first_key, 0, 0.0f, 1.0f};
    row.diagonal = (int32_t)(i + s->len_k - s->len_q + p->diagonal_offset);
    if (bias->alibi_slopes)
        row.slope =
            flash_load_of_head(bias->alibi_slopes, batch_index * bias->alibi_stride_batch + head);
    if (bias->head_scale)
        row.factor = flash_load_of_head(bias->head_scale, head);
    if (bias->is_last_keys)
        row.first_key += s->len_k;
    row.at =
        batch_index * bias->stride_batch + head * bias->stride_head + number * bias->stride_query;
    return row;
}

/* Returns the row of query i of a head. is_of_blocks: whether the mask is FLASH_MASK_BLOCKS, whose
 * rows are counted within the sequence. */
FLASH_HOST_DEVICE static inline flash_bias_row_t
flash_bias_row_of(const flash_params_t *p, const flash_sequence_t *s, int64_t batch_index,
                  int64_t head, int64_t i, int is_of_blocks) {
    const int64_t number =
        is_of_blocks ? (uint32_t)i / (uint32_t)p->bias.block.queries : s->q_begin + i;
    return flash_numbered_bias_row(p, s, batch_index, head, i, number);
}

/* Does the same for a mask of any kind. Where that is asked for every block of keys, the division
 * takes registers that the larger kernels do not have. */
FLASH_HOST_DEVICE static inline flash_bias_row_t flash_bias_row(const flash_params_t *p,
                                                                const flash_sequence_t *s,
                                                                int64_t batch_index, int64_t head,
                                                                int64_t i) {
    return flash_bias_row_of(p, s, batch_index, head, i, p->bias.kind == FLASH_MASK_BLOCKS);
}

/* Says whether the mask has a column for the key. */
FLASH_HOST_DEVICE static inline int flash_bias_covers(const flash_bias_t *bias,
                                                      const flash_bias_row_t *row, int32_t key) {
    return bias->mask != NULL && (uint32_t)(key - row->first_key) < (uint32_t)bias->n_keys;
}

/* Returns where the key's bit or number is: in words or elements from the mask's first one. */
FLASH_HOST_DEVICE static inline int64_t flash_bias_at(const flash_bias_t *bias,
                                                      const flash_bias_row_t *row, int32_t key) {
    const int32_t column = key - row->first_key;
    return row->at +
           (bias->kind == FLASH_MASK_BITS ? column / 32 : (int64_t)column * bias->stride_key);
}

/* Says whether a word of bits shows the key. */
FLASH_HOST_DEVICE static inline int flash_bias_shows(uint32_t word, const flash_bias_row_t *row,
                                                     int32_t key) {
    return (int)(word >> ((uint32_t)(key - row->first_key) % 32) & 1);
}

/* Returns where the effects of a tile's mask on its blocks of keys begin. */
FLASH_HOST_DEVICE static inline int64_t flash_mask_blocks_at(const flash_mask_blocks_t *blocks,
                                                             int32_t batch_index, int32_t head,
                                                             int32_t tile) {
    const int32_t entry = blocks->entries > 1 ? batch_index : 0;
    const int32_t of_head = blocks->heads > 1 ? head : 0;
    return (((int64_t)entry * blocks->heads + of_head) * blocks->tiles + tile) * blocks->blocks;
}

/* Returns what ALiBi adds. */
FLASH_HOST_DEVICE static inline float flash_bias_alibi(const flash_bias_row_t *row, int32_t key) {
    const int32_t distance = key - row->diagonal;
    return row->slope * -(float)(distance < 0 ? -distance : distance);
}

#endif
