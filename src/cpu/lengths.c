/*
 * Copies of the lengths of a ragged batch.
 */
#include "cpu/lengths.h"

#include "core/int64.h"
#include "kernels/common/sequence.h"

enum { ALIGNMENT = 64 }; /* bytes, of each copy */

static uint64_t size_of(const int32_t *lengths, int64_t n) {
    const uint64_t bytes = (uint64_t)n * sizeof *lengths;
    return lengths ? (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : 0;
}

uint64_t cpu_lengths_size(const flash_params_t *p) {
    const int64_t batch = p->batch;
    return size_of(p->cu_seqlens_q, batch + 1) + size_of(p->cu_seqlens_k, batch + 1) +
           size_of(p->seqused_k, batch);
}

static int32_t clamp(int32_t value, int64_t least, int64_t most) {
    return (int32_t)max64(least, min64(value, most));
}

static void copy_cu_seqlens(const int32_t *from, int32_t batch, int32_t seqlen, int64_t total,
                            int32_t *to) {
    to[0] = 0;
    for (int32_t b = 0; b < batch; b++)
        to[b + 1] = clamp(flash_load_length(from, (int64_t)b + 1), to[b],
                          min64(total, (int64_t)to[b] + seqlen));
}

static void copy_seqused_k(const flash_params_t *p, int32_t *to) {
    for (int32_t b = 0; b < p->batch; b++) {
        const int32_t keys =
            p->cu_seqlens_k ? p->cu_seqlens_k[b + 1] - p->cu_seqlens_k[b] : p->seqlen_k;
        to[b] = clamp(flash_load_length(p->seqused_k, b), 0, keys);
    }
}

void cpu_lengths_copy(flash_params_t *p, const cpu_totals_t *totals, void *memory) {
    char *rest = memory;
    int32_t *cu_q = (int32_t *)(void *)rest;
    rest += size_of(p->cu_seqlens_q, (int64_t)p->batch + 1);
    int32_t *cu_k = (int32_t *)(void *)rest;
    rest += size_of(p->cu_seqlens_k, (int64_t)p->batch + 1);
    int32_t *used = (int32_t *)(void *)rest;
    if (p->cu_seqlens_q) {
        copy_cu_seqlens(p->cu_seqlens_q, p->batch, p->seqlen_q, totals->q, cu_q);
        p->cu_seqlens_q = cu_q;
    }
    if (p->cu_seqlens_k) {
        copy_cu_seqlens(p->cu_seqlens_k, p->batch, p->seqlen_k, totals->k, cu_k);
        p->cu_seqlens_k = cu_k;
    }
    if (p->seqused_k) {
        copy_seqused_k(p, used);
        p->seqused_k = used;
    }
}
