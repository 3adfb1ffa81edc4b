/*
 * This file prefetches cache lines. "Near" is the level 1 cache.
 */
#ifndef FLASH_KERNELS_CPU_PREFETCH_H
#define FLASH_KERNELS_CPU_PREFETCH_H

#include "cpu/tuning.h"
#include "cpu/vector.h"

#include <stdint.h>

ALWAYS_INLINE void prefetch_line(const void *byte) {
    __builtin_prefetch(byte, 0, 2);
}

ALWAYS_INLINE void prefetch_line_near(const void *byte) {
    __builtin_prefetch(byte, 0, 3);
}

ALWAYS_INLINE const char *line_of(const void *byte) {
    return (const char *)((uintptr_t)byte / CACHE_LINE * CACHE_LINE);
}

ALWAYS_INLINE void prefetch_row(const void *row, int64_t bytes) {
    const char *end = (const char *)row + bytes;
    for (const char *line = line_of(row); line < end; line += CACHE_LINE)
        prefetch_line(line);
}

/* Prefetches a row to the level 1 cache, which has no room for more than a few. */
ALWAYS_INLINE void prefetch_row_near(const void *row, int64_t bytes) {
    const char *end = (const char *)row + bytes;
    for (const char *line = line_of(row); line < end; line += CACHE_LINE)
        prefetch_line_near(line);
}

#endif
