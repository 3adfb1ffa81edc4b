/*
 * Asking for memory that is wanted soon.
 */
#ifndef FLASH_KERNELS_CPU_PREFETCH_H
#define FLASH_KERNELS_CPU_PREFETCH_H

#include "cpu/vector.h"

#include <stdint.h>

enum { CACHE_LINE = 64 };

/* Brings a row of so many bytes to the level 2 cache. */
ALWAYS_INLINE void prefetch_row(const void *row, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += CACHE_LINE)
        __builtin_prefetch((const char *)row + i, 0, 2);
}

#endif
