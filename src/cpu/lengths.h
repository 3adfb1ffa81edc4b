/*
 * The lengths of a ragged batch are copied once per call. So all workers see the same ones, and
 * none leads outside the tensors, even if the caller's other threads change them during the call.
 */
#ifndef FLASH_CPU_LENGTHS_H
#define FLASH_CPU_LENGTHS_H

#include "core/problem.h"

/* The tokens of ragged tensors and the limits of a page table, when the lengths were checked. */
typedef struct cpu_totals {
    int64_t q;
    int64_t k;
    page_limits_t pages;
} cpu_totals_t;

/* Returns the bytes of the copies, a multiple of 64. */
uint64_t cpu_lengths_size(const flash_params_t *params);

/*
 * Copies those of cu_seqlens_*, seqused_* and the arrays of pages, except the page table, that are
 * not NULL, to memory of cpu_lengths_size() bytes, 64-byte aligned, and points `params` to the
 * copies. With pages the lengths of cu_seqlens_k become those of seqused_k. Whatever is read, the
 * copied cu_seqlens ascend from 0 in steps of 0 ... seqlen to at most the total, and no sequence
 * uses more tokens than it or its pages have. Ids of pages are checked where they are used
 * (kernels/cpu/rows.h).
 */
void cpu_lengths_copy(flash_params_t *params, const cpu_totals_t *totals, void *memory);

/* The most queries and keys that a sequence of a batch uses. */
typedef struct cpu_longest {
    int64_t queries;
    int64_t keys;
} cpu_longest_t;

/* Finds them, by lengths that are already copied. The caller's seqlen_q and seqlen_k are only
 * bounds of them, which may be far too large. */
cpu_longest_t cpu_lengths_longest(const flash_params_t *params);

#endif
