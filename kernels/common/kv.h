/*
 * Where the keys of a sequence lie in K and V: in one place, for host and device code.
 *
 * A run is a stretch of consecutive keys of one sequence that lie in one entry of the tensors'
 * outermost axis, one stride apart. Code that reads K or V asks for the run that a key is in, and
 * reads no further than it reaches: by addresses, from flash_kv_offset() on (kernels/cpu,
 * kernels/sm80), or by the run's coordinates (the boxes of TMA, kernels/sm90/load/box.cuh).
 *
 * In a contiguous or ragged cache the whole sequence is one run: a loop that asks once never comes
 * to its end. A paged cache, [n_pages, page_size, n_heads_kv, d_head] with the stride of a page as
 * stride.batch, answers shorter runs, one per page:
 *
 *     at     = key % page_size
 *     entry  = table[key / page_size]              the sequence's row of the page table, which
 *     begin  = 0                                   flash_sequence() finds, as it finds k_begin
 *     length = min(page_size, len_k - (key - at))
 *
 * Loops that take the keys of one run at a time (cpu_first_keys() in kernels/cpu/rows.h) then have
 * smaller blocks. Those that ask once and go on have to ask again at a run's end: the walk of SM80
 * and SM90's boxes, and on CPUs what packs a block of B_c keys (keys_at(), cursor_at_keys()).
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
