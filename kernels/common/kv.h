/*
 * Host and device code find here where the keys of a sequence lie in K and V.
 *
 * A run is a stretch of consecutive keys of one sequence that lie in one entry of the tensors'
 * outermost axis, one stride apart. Code that reads K or V asks for the run that a key is in, and
 * reads no further than it reaches: by addresses, from flash_kv_offset() on (kernels/cpu,
 * kernels/sm80), or by the run's coordinates (the boxes of TMA, kernels/sm90/load/box.cuh).
 *
 * In a contiguous or ragged cache the whole sequence is one run. A paged cache, [n_pages,
 * page_size, n_heads_kv, d_head] with the stride of a page as stride.batch, has a run for each page
 * of a sequence, and K's and V's runs may lie in different entries, but are equally long:
 *
 *     at     = key % page_size
 *     entry  = table[first id + key / page_size]
 *     begin  = 0
 *     length = page_size, or what the sequence's length leaves of it
 *
 * In a cache of slots it has one run, in the entry of its slot, behind the padding.
 */
#ifndef FLASH_KERNELS_COMMON_KV_H
#define FLASH_KERNELS_COMMON_KV_H

#include "common/params.h"
#include "common/sequence.h"

typedef struct flash_kv_run {
    int64_t entry;  /* of the outermost axis: the batch entry; its stride is 0 where K is ragged */
    int64_t begin;  /* the run's first token, in the entry */
    int64_t at;     /* the key that was asked for, counted from there */
    int32_t length; /* keys of the run */
} flash_kv_run_t;

/* The run that a key of the sequence of a batch entry is in. */
FLASH_HOST_DEVICE static inline flash_kv_run_t flash_kv_run(const flash_sequence_t *s,
                                                            int32_t batch_index, int64_t key) {
    const flash_kv_run_t run = {batch_index, s->k_begin, key, s->len_k};
    return run;
}

/* ---- Pages ---- */

/* Returns the row of the page table that a sequence has, or its slot; -1 for a number that is none.
 */
FLASH_HOST_DEVICE static inline int32_t flash_page_row(const flash_pages_t *pages,
                                                       int32_t batch_index) {
    if (pages->rows64) {
        const int64_t row = flash_load_int64(pages->rows64, batch_index);
        return row == (int32_t)row ? (int32_t)row : -1;
    }
    return pages->rows ? flash_load_length(pages->rows, batch_index) : batch_index;
}

/* Returns where the ids of a sequence begin in the page table; in a cache of slots, its slot. */
FLASH_HOST_DEVICE static inline int64_t flash_pages_first_id(const flash_pages_t *pages,
                                                             int32_t batch_index) {
    if (pages->indptr)
        return flash_load_length(pages->indptr, batch_index);
    const int64_t row = flash_page_row(pages, batch_index);
    return pages->table ? row * pages->table_stride : row;
}

/* Keys that the sequence's part of the page table, or its slot, holds. */
FLASH_HOST_DEVICE static inline int64_t flash_pages_room(const flash_pages_t *pages,
                                                         int32_t batch_index) {
    int64_t n_ids = pages->table ? pages->table_stride : 1;
    if (pages->indptr)
        n_ids = (int64_t)flash_load_length(pages->indptr, (int64_t)batch_index + 1) -
                flash_load_length(pages->indptr, batch_index);
    return n_ids * pages->page_size;
}

/* The sequence with no more keys than its pages hold and seqlen_k says, whatever seqused_k or
 * cu_seqlens_k is. A slot holds its padding too. */
FLASH_HOST_DEVICE static inline flash_sequence_t flash_paged_sequence(const flash_params_t *p,
                                                                      int32_t batch_index) {
    flash_sequence_t s = flash_sequence_in(p, batch_index, 1);
    const int64_t held = flash_pages_room(&p->pages, batch_index);
    const int32_t bound = held < p->seqlen_k ? (int32_t)held : p->seqlen_k;
    const int32_t room = s.k_begin < bound ? bound - (int32_t)s.k_begin : 0;
    s.len_k = s.len_k < room ? s.len_k : room;
    return s;
}

/* Which page of a sequence a key is in, counted from 0. Positions have 31 bits, whose division is
 * quick. */
FLASH_HOST_DEVICE static inline int32_t flash_kv_page_of(const flash_pages_t *pages, int64_t key) {
    return pages->table ? (int32_t)((uint32_t)key / (uint32_t)pages->page_size) : 0;
}

/* The run that a key of a sequence is in. table: pages.table for K, pages.v_table for V; first_id:
 * flash_pages_first_id(). The entry is a page of the pool only if the id is one. Only in slots do
 * keys begin after the first token: with a table, k_begin is 0. */
FLASH_HOST_DEVICE static inline flash_kv_run_t flash_kv_paged_run(const flash_pages_t *pages,
                                                                  const int32_t *table,
                                                                  const flash_sequence_t *s,
                                                                  int64_t first_id, int64_t key) {
    const int64_t page = flash_kv_page_of(pages, key), begin = page * pages->page_size;
    const int64_t left = s->len_k - begin;
    const flash_kv_run_t run = {table ? flash_load_length(table, first_id + page) : first_id,
                                s->k_begin, key - begin,
                                left < pages->page_size ? (int32_t)left : pages->page_size};
    return run;
}

/* ---- Places ---- */

/* Keys from the one that was asked for to the end of the run. */
FLASH_HOST_DEVICE static inline int64_t flash_kv_left(const flash_kv_run_t *run) {
    return run->length - run->at;
}

/* Elements from the first one of K or V to the first one of the key that was asked for, of K/V head
 * `head_kv`; from key to key of the run it is stride->seq more. */
FLASH_HOST_DEVICE static inline int64_t
flash_kv_offset(const flash_strides_t *stride, const flash_kv_run_t *run, int64_t head_kv) {
    return run->entry * stride->batch + head_kv * stride->head +
           (run->begin + run->at) * stride->seq;
}

#endif
