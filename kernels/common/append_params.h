/*
 * Host and device code see flash_kv_append() like this: checked, with every default filled in,
 * plain data that owns nothing. The functions find the sequence, the position and the place of a
 * token.
 */
#ifndef FLASH_KERNELS_COMMON_APPEND_PARAMS_H
#define FLASH_KERNELS_COMMON_APPEND_PARAMS_H

#include "common/kv.h"
#include "common/params.h"
#include "common/scale.h"
#include "common/sequence.h"
#include "flashattn.h"

/* K and V go from the new tokens to the cache, Q to where it is wanted. */
enum { APPEND_K, APPEND_V, APPEND_Q, APPEND_PARTS };

typedef struct append_part {
    const void *from;
    void *to;
    flash_strides_t from_stride;
    flash_strides_t to_stride;
    flash_scale_t scale;  /* of `to` */
    const int32_t *table; /* ids of its pages; NULL for Q, and without a page table */
    int32_t from_dtype;
    int32_t to_dtype;
    int32_t n_heads; /* 0: the call has no such part */
    int32_t turns;   /* 1: rotary embedding */
} append_part_t;

typedef struct append_rotary {
    const void *cos;
    const void *sin;
    const int64_t *positions; /* NULL: from `start` */
    const int32_t *start;     /* [batch]; NULL only with positions */
    int64_t stride_position;
    int32_t n_positions;
    int32_t n_pairs; /* rotary_dim / 2; 0: nothing turns */
    int32_t dtype;
    int32_t is_interleaved;
    int32_t q_at_start;
} append_rotary_t;

/* The tokens of K and V, or those of Q. */
typedef struct append_tokens {
    const int32_t *cu_seqlens; /* [batch + 1], or NULL */
    int64_t total;
    int32_t seqlen; /* of each sequence, without cu_seqlens */
} append_tokens_t;

typedef struct append_params {
    append_part_t parts[APPEND_PARTS];
    append_tokens_t tokens_new;
    append_tokens_t tokens_q;
    append_rotary_t rotary;
    flash_pages_t pages;
    const int32_t *seqused_k;
    int32_t *seqused_k_out;
    const int64_t *slots; /* NULL: the place of a token comes from seqused_k */
    /* Ids of the page table: the CPU reads no further, whatever page_indptr and page_rows become
     * during the call; kernels of CUDA devices do not know it. */
    int64_t n_ids;
    int32_t batch;
    int32_t seqlen_k; /* keys that a sequence can have, at most */
    int32_t d_head;   /* of K and Q; in kernels of CUDA devices, of all parts */
    int32_t d_head_v; /* kernels of CUDA devices do not look at it */
} append_params_t;

/* A token of the call. */
typedef struct append_token {
    int64_t number; /* its index along the sequence axis of a ragged tensor */
    int64_t i;      /* its index in its sequence */
    int32_t batch_index;
    int32_t exists; /* 0: it lies behind the last sequence */
} append_token_t;

/* Returns the sequence of a token of a ragged tensor: the last one that begins at it or before. */
FLASH_HOST_DEVICE static inline int32_t append_sequence_of(const int32_t *cu_seqlens, int32_t batch,
                                                           int64_t number) {
    int32_t low = 0, high = batch; /* cu_seqlens[low] <= number < cu_seqlens[high] */
    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;
        if (flash_load_length(cu_seqlens, middle) <= number)
            low = middle;
        else
            high = middle;
    }
    return low;
}

FLASH_HOST_DEVICE static inline append_token_t append_token(const append_tokens_t *tokens,
                                                            int32_t batch, int64_t number) {
    append_token_t token = {number, 0, 0, 1};
    if (tokens->cu_seqlens) {
        token.batch_index = append_sequence_of(tokens->cu_seqlens, batch, number);
        token.i = number - flash_load_length(tokens->cu_seqlens, token.batch_index);
        token.exists = number < flash_load_length(tokens->cu_seqlens, batch);
    } else {
        /* 31 bits count the tokens of a call, and are divided quickly. */
        token.batch_index = (int32_t)((uint32_t)number / (uint32_t)tokens->seqlen);
        token.i = number - (int64_t)token.batch_index * tokens->seqlen;
    }
    return token;
}

/* Returns the distance in elements from the start of a tensor to a token's first head. */
FLASH_HOST_DEVICE static inline int64_t append_token_offset(const append_tokens_t *tokens,
                                                            const flash_strides_t *stride,
                                                            const append_token_t *token) {
    return tokens->cu_seqlens ? token->number * stride->seq
                              : token->batch_index * stride->batch + token->i * stride->seq;
}

/* Returns a token's row in the tables of cosines and sines: any, not yet one of theirs. */
FLASH_HOST_DEVICE static inline int64_t
append_position(const append_rotary_t *rotary, const append_token_t *token, int stays_at_start) {
    if (rotary->positions)
        return flash_load_int64(rotary->positions, token->number);
    return flash_load_length(rotary->start, token->batch_index) + (stays_at_start ? 0 : token->i);
}

/* A place in the cache. */
typedef struct append_place {
    int64_t entry; /* of the outermost axis; negative: there is no place */
    int64_t at;    /* the token in it */
} append_place_t;

FLASH_HOST_DEVICE static inline append_place_t append_no_place(void) {
    const append_place_t place = {-1, 0};
    return place;
}

FLASH_HOST_DEVICE static inline append_place_t append_slot_place(const append_params_t *p,
                                                                 int64_t slot) {
    const append_place_t place = {slot / p->pages.page_size, slot % p->pages.page_size};
    return slot >= 0 && place.entry < p->pages.n_pages ? place : append_no_place();
}

/* A range says which pages, or slots, the keys of a sequence may go to. */
typedef struct append_range {
    int64_t first_id; /* in the page table; in a cache of slots, the slot */
    int64_t n_ids;    /* from there on; negative where page_indptr descends */
    int64_t room;     /* keys */
} append_range_t;

/* Each number is read once, because another thread may change it during a call on the CPU. */
FLASH_HOST_DEVICE static inline append_range_t append_range(const append_params_t *p,
                                                            int32_t batch_index) {
    const flash_pages_t *pages = &p->pages;
    append_range_t range = {batch_index, pages->table ? pages->table_stride : 1, p->seqlen_k};
    if (pages->page_size == 0)
        return range;
    if (pages->indptr) {
        range.first_id = flash_load_length(pages->indptr, batch_index);
        range.n_ids = flash_load_length(pages->indptr, (int64_t)batch_index + 1) - range.first_id;
    } else {
        const int64_t row = flash_page_row(pages, batch_index);
        range.first_id = pages->table ? row * pages->table_stride : row;
    }
    if (range.n_ids * pages->page_size < range.room)
        range.room = range.n_ids * pages->page_size;
    return range;
}

/* The place of the key at a position of a sequence, in pages. */
FLASH_HOST_DEVICE static inline append_place_t append_paged_place(const flash_pages_t *pages,
                                                                  const int32_t *table,
                                                                  const append_range_t *range,
                                                                  int64_t position) {
    const int64_t page = flash_kv_page_of(pages, position);
    const append_place_t place = {table ? flash_load_length(table, range->first_id + page)
                                        : range->first_id,
                                  position - page * pages->page_size};
    return place.entry >= 0 && place.entry < pages->n_pages ? place : append_no_place();
}

/* Returns where the key at a position of a sequence goes, in K or V. */
FLASH_HOST_DEVICE static inline append_place_t append_place_in(const append_params_t *p,
                                                               const int32_t *table,
                                                               const append_range_t *range,
                                                               int64_t position) {
    if (position < 0 || position >= range->room || range->first_id < 0)
        return append_no_place();
    if (p->pages.page_size > 0)
        return append_paged_place(&p->pages, table, range, position);
    const append_place_t place = {range->first_id, position};
    return place;
}

/* Returns the key that a new token becomes; there are no slots. */
FLASH_HOST_DEVICE static inline int64_t append_key(const append_params_t *p,
                                                   const append_token_t *token) {
    return flash_load_length(p->seqused_k, token->batch_index) + token->i;
}

/* Returns where a new token goes, in K or V. */
FLASH_HOST_DEVICE static inline append_place_t
append_place(const append_params_t *p, const int32_t *table, const append_token_t *token) {
    if (p->slots)
        return append_slot_place(p, flash_load_int64(p->slots, token->number));
    const append_range_t range = append_range(p, token->batch_index);
    return append_place_in(p, table, &range, append_key(p, token));
}

/* Returns the scale of a head of a token that goes to this entry of the cache: its page's, or its
 * sequence's. New tokens of e4m3, and what has no place, have none. */
FLASH_HOST_DEVICE static inline float append_scale(const append_part_t *part, int32_t batch_index,
                                                   int64_t entry, int32_t head) {
    if (part->scale.data == NULL || part->from_dtype == FLASH_DTYPE_E4M3 || entry < 0)
        return 1;
    return flash_has_page_scales(&part->scale) ? flash_page_scale_at(&part->scale, entry, head)
                                               : flash_scale_at(&part->scale, batch_index, head);
}

/* Returns the keys that a sequence has when its new tokens are appended. */
FLASH_HOST_DEVICE static inline int32_t append_length_after(const append_params_t *p, int32_t b) {
    const int32_t *cu_seqlens = p->tokens_new.cu_seqlens;
    const int64_t n_new = cu_seqlens ? (int64_t)flash_load_length(cu_seqlens, (int64_t)b + 1) -
                                           flash_load_length(cu_seqlens, b)
                                     : p->tokens_new.seqlen;
    return (int32_t)(flash_load_length(p->seqused_k, b) + n_new);
}

/* ---- The kernels of CUDA devices ---- */

enum {
    APPEND_THREADS = 128, /* per block */
    APPEND_BLOCKS = 6,    /* per multiprocessor, as registers allow */
    APPEND_VECTOR = 8     /* elements that the faster kernels take at once */
};

/* Blocks share the tokens of K and V, or those of Q, like this. */
typedef struct append_share {
    uint32_t n_blocks;
    int32_t token_blocks; /* blocks that share a token */
    int32_t token_units;  /* units of a token, row by row; K's rows come before V's */
} append_share_t;

/*
 * A unit is two vectors of a row: one of first and one of second elements of pairs, or, with
 * interleaved pairs and beyond rotary_dim, two that lie side by side.
 */
typedef struct append_work {
    append_params_t params;
    append_share_t share_new; /* its blocks come first */
    append_share_t share_q;
    int32_t row_units;
} append_work_t;

#ifndef __CUDACC__
/* The kernels of append.cu are declared for the host, which launches them and never calls them. The
 * first two move vectors, the third single elements of any type. */
void flash_append_fp16(append_work_t work);
void flash_append_bf16(append_work_t work);
void flash_append_elements(append_work_t work);
/* The fourth writes latent tokens; a block has a head of a token. */
void flash_append_latent(append_work_t work);
#endif

#endif
