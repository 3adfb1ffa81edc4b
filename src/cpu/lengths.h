/*
 * The lengths of a ragged batch, copied once per call: whatever the caller's other threads do to
 * them meanwhile, all workers see the same ones, and none leads outside the tensors.
 */
#ifndef FLASH_CPU_LENGTHS_H
#define FLASH_CPU_LENGTHS_H

#include "core/problem.h"

/* Tokens of the ragged tensors and the limits of a page table, as they were when the lengths were
 * checked. */
typedef struct cpu_totals {
    int64_t q;
    int64_t k;
    page_limits_t pages;
} cpu_totals_t;

/* Bytes of the copies, a multiple of 64. */
uint64_t cpu_lengths_size(const flash_params_t *params);

/*
 * Copies cu_seqlens_*, seqused_* and the arrays of pages but the table, those that there are, to
 * memory of cpu_lengths_size() bytes, 64-byte aligned, and points `params` to the copies. What is
 * copied ascends from 0 in steps of 0 ... seqlen to at most the total, and has no more tokens used
 * than a sequence or its pages have, whatever is read. Ids of pages are looked at where they are
 * used (kernels/cpu/rows.h).
 */
void cpu_lengths_copy(flash_params_t *params, const cpu_totals_t *totals, void *memory);

#endif
