/*
 * This file finds where a sequence's tokens lie in the tensors, and which keys a query sees.
 */
#ifndef FLASH_KERNELS_COMMON_SEQUENCE_H
#define FLASH_KERNELS_COMMON_SEQUENCE_H

#include "common/host_device.h"
#include "common/params.h"

#include <string.h>

/* One sequence of the batch. Positions count tokens from the start of its batch entry. */
typedef struct flash_sequence {
    int64_t q_begin; /* first query; 0 unless ragged */
    int64_t k_begin; /* first key; 0 unless ragged or padded at the left */
    int32_t len_q;   /* queries: at most seqused_q if that is given; 0 if another kernel computes
                        the sequence */
    int32_t len_k;   /* keys: seqused_k if that is given, less leftpad_k */
} flash_sequence_t;

/* A half-open range of keys; empty when begin >= end. */
typedef struct flash_range {
    int32_t begin;
    int32_t end;
} flash_range_t;

/* Reads array[i]. On the CPU the array may have any alignment, on a GPU that of its elements. */
FLASH_HOST_DEVICE static inline int32_t flash_load_length(const int32_t *array, int64_t i) {
#ifdef __CUDA_ARCH__
    return array[i];
#else
    int32_t value;
    memcpy(&value, (const char *)array + i * (int64_t)sizeof value, sizeof value);
    return value;
#endif
}

/* Does the same where elements have 64 bits. */
FLASH_HOST_DEVICE static inline int64_t flash_load_int64(const int64_t *array, int64_t i) {
#ifdef __CUDA_ARCH__
    return array[i];
#else
    int64_t value;
    memcpy(&value, (const char *)array + i * (int64_t)sizeof value, sizeof value);
    return value;
#endif
}

/* Says whether the kernel computes all sequences of the batch, not only those of some lengths. */
FLASH_HOST_DEVICE static inline int flash_has_whole_batch(const flash_params_t *p) {
    return p->most_queries == 0;
}

/* Says whether the kernel computes sequences of len_q queries. It has no branches, which cost
 * registers that the larger kernels do not have. */
FLASH_HOST_DEVICE static inline int flash_computes_length(const flash_params_t *p, int32_t len_q) {
    const int is_in_range = (len_q >= p->least_queries) & (len_q <= p->most_queries);
    return flash_has_whole_batch(p) | is_in_range;
}

/* Returns the tokens before the first key of a sequence's place; there is leftpad_k. Inlined, it
 * takes registers that the larger kernels do not have. */
FLASH_HOST_DEVICE_CALLED int32_t flash_leftpad(const flash_params_t *p, int32_t batch_index) {
    const int32_t padding = flash_load_length(p->leftpad_k, batch_index);
    return padding > 0 ? padding : 0;
}

/* is_paged: cu_seqlens_k says how many keys the sequence has, but not where they lie. */
FLASH_HOST_DEVICE static inline flash_sequence_t
flash_sequence_in(const flash_params_t *p, int32_t batch_index, int is_paged) {
    flash_sequence_t s = {0, 0, p->seqlen_q, p->seqlen_k};
    if (p->cu_seqlens_q) {
        const int32_t begin = flash_load_length(p->cu_seqlens_q, batch_index);
        s.q_begin = begin;
        s.len_q = flash_load_length(p->cu_seqlens_q, (int64_t)batch_index + 1) - begin;
    }
    if (p->cu_seqlens_k) {
        const int32_t begin = flash_load_length(p->cu_seqlens_k, batch_index);
        s.k_begin = is_paged ? 0 : begin;
        s.len_k = flash_load_length(p->cu_seqlens_k, (int64_t)batch_index + 1) - begin;
    }
    if (p->seqused_q) {
        const int32_t used = flash_load_length(p->seqused_q, batch_index);
        s.len_q = used < s.len_q ? used : s.len_q;
    }
    if (!flash_computes_length(p, s.len_q))
        s.len_q = 0;
    if (p->seqused_k)
        s.len_k = flash_load_length(p->seqused_k, batch_index);
    if (p->leftpad_k) {
        const int32_t padding = flash_leftpad(p, batch_index);
        s.k_begin += padding;
        s.len_k = s.len_k > padding ? s.len_k - padding : 0;
    }
    return s;
}

FLASH_HOST_DEVICE static inline flash_sequence_t flash_sequence(const flash_params_t *p,
                                                                int32_t batch_index) {
    return flash_sequence_in(p, batch_index, 0);
}

/* ---- What queries see. Masks are bottom-right aligned: query i stands at key i + len_k - len_q,
 * its place, or diagonal_offset keys further. From query to query, both ends of what they see move
 * right or stay. ---- */

/* Returns the keys that query i of the sequence sees where no chunk hides any, and the diagonal is
 * not shifted. */
FLASH_HOST_DEVICE static inline flash_range_t
flash_window_keys(const flash_params_t *p, const flash_sequence_t *s, int64_t i) {
    const int64_t diagonal = i + s->len_k - s->len_q;
    int64_t begin = 0;
    int64_t end = s->len_k;
    if (p->window_left >= 0 && diagonal - p->window_left > begin)
        begin = diagonal - p->window_left;
    if (p->window_right >= 0 && diagonal + p->window_right + 1 < end)
        end = diagonal + p->window_right + 1;
    if (end <= begin) /* a window wholly past either end of the keys */
        begin = end = 0;
    const flash_range_t range = {(int32_t)begin, (int32_t)end};
    return range;
}

/* Returns the keys of the attention chunk that a place is in. One before the first key is in none.
 */
FLASH_HOST_DEVICE static inline flash_range_t flash_attention_chunk_at(const flash_params_t *p,
                                                                       int64_t place) {
    flash_range_t chunk = {0, 0};
    if (place >= 0) {
        chunk.begin = flash_divide((int32_t)place, p->by_attention_chunk) * p->attention_chunk;
        chunk.end = p->attention_chunk < INT32_MAX - chunk.begin ? chunk.begin + p->attention_chunk
                                                                 : INT32_MAX;
    }
    return chunk;
}

/* Returns the keys that query i of the sequence sees. A range of none is at the side of the keys at
 * which the query stands. */
FLASH_HOST_DEVICE static inline flash_range_t
flash_visible_keys(const flash_params_t *p, const flash_sequence_t *s, int64_t i) {
    const int64_t unshifted = i + p->diagonal_offset; /* this query would stand there without */
    flash_range_t keys = flash_window_keys(p, s, unshifted);
    if (p->attention_chunk > 0) {
        const flash_range_t chunk = flash_attention_chunk_at(p, unshifted + s->len_k - s->len_q);
        keys.begin = chunk.begin > keys.begin ? chunk.begin : keys.begin;
        keys.end = chunk.end < keys.end ? chunk.end : keys.end;
    }
    if (keys.end <= keys.begin)
        keys.begin = keys.end = unshifted >= s->len_q ? s->len_k : 0;
    return keys;
}

/* Returns the queries of the sequence that see a key. From key to key, both ends move right or
 * stay.
 */
FLASH_HOST_DEVICE static inline flash_range_t
flash_seeing_queries(const flash_params_t *p, const flash_sequence_t *s, int32_t key) {
    const int64_t shift = (int64_t)s->len_k - s->len_q;
    int64_t begin = 0;
    int64_t end = s->len_q;
    if (p->window_right >= 0 && key - p->window_right - shift > begin)
        begin = key - p->window_right - shift;
    if (p->window_left >= 0 && key + (int64_t)p->window_left - shift + 1 < end)
        end = key + (int64_t)p->window_left - shift + 1;
    if (p->attention_chunk > 0) {
        const flash_range_t chunk = flash_attention_chunk_at(p, key);
        begin = chunk.begin - shift > begin ? chunk.begin - shift : begin;
        end = chunk.end - shift < end ? chunk.end - shift : end;
    }
    const flash_range_t range = {(int32_t)(begin < s->len_q ? begin : s->len_q),
                                 (int32_t)(end > 0 ? end : 0)};
    return range;
}

/* Returns the distance between heads in params->lse, in elements. */
FLASH_HOST_DEVICE static inline int64_t flash_lse_head_stride(const flash_params_t *p) {
    return p->lse_stride.head == FLASH_STRIDE_TOTAL ? flash_load_length(p->cu_seqlens_q, p->batch)
                                                    : p->lse_stride.head;
}

/* Returns the index of query i of query head `head` in params->lse. */
FLASH_HOST_DEVICE static inline int64_t flash_lse_index(const flash_params_t *p,
                                                        const flash_sequence_t *s,
                                                        int32_t batch_index, int32_t head,
                                                        int64_t i) {
    return batch_index * p->lse_stride.batch + head * flash_lse_head_stride(p) +
           (s->q_begin + i) * p->lse_stride.seq;
}

#endif
