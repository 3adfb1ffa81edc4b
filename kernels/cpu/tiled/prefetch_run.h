/*
 * A run of memory is prefetched by the calls of the micro-kernel for a product, which take shares
 * of it one after the other.
 */
#ifndef FLASH_KERNELS_CPU_TILED_PREFETCH_RUN_H
#define FLASH_KERNELS_CPU_TILED_PREFETCH_RUN_H

#include "cpu/tuning.h"
#include "cpu/vector.h"

#include <stdint.h>

typedef struct prefetch_run {
    const char *at;
    const char *end;
} prefetch_run_t;

/* Returns the run of n rows from row `first` on. */
static inline prefetch_run_t prefetch_run_of(const float *rows, int64_t stride, int64_t first,
                                             int64_t n) {
    const float *begin = rows + first * stride;
    return (prefetch_run_t){(const char *)begin, (const char *)(begin + n * stride)};
}

/* Returns where a call that prefetches so many bytes begins. At the end of the run it is one place,
 * behind the share of the last call. */
ALWAYS_INLINE const char *take_share(prefetch_run_t *run, int64_t bytes) {
    const char *share = run->at;
    if (share < run->end)
        run->at += bytes;
    return share;
}

#endif
