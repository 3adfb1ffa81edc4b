/*
 * The lengths of a ragged batch, copied once per call: whatever the caller's other threads do to
 * them meanwhile, all workers see the same ones, and none leads outside the tensors.
 */
#ifndef FLASH_CPU_LENGTHS_H
#define FLASH_CPU_LENGTHS_H

#include "kernels/common/params.h"

/* Tokens of the ragged tensors, as they were when the lengths were checked. */
typedef struct cpu_totals {
    int64_t q;
    int64_t k;
} cpu_totals_t;

/* Bytes of the copies, a multiple of 64. */
uint64_t cpu_lengths_size(const flash_params_t *params);

/*
 * Copies cu_seqlens_q, cu_seqlens_k and seqused_k, those that there are, to memory of
 * cpu_lengths_size() bytes, 64-byte aligned, and points `params` to the copies. What is copied
 * ascends from 0 in steps of 0 ... seqlen to at most the total, and has no more keys used than a
 * sequence has, whatever is read.
 */
void cpu_lengths_copy(flash_params_t *params, const cpu_totals_t *totals, void *memory);

#endif
