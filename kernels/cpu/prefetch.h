/*
 * Asking for memory that is wanted soon.
 */
#ifndef FLASH_KERNELS_CPU_PREFETCH_H
#define FLASH_KERNELS_CPU_PREFETCH_H

#include "cpu/tuning.h"
#include "cpu/vector.h"

#include <stdint.h>

/* Brings the line of a byte to the level 2 cache. */
ALWAYS_INLINE void prefetch_line(const void *byte) {
    __builtin_prefetch(byte, 0, 2);
}

/* The same to the level 1 cache. */
ALWAYS_INLINE void prefetch_line_near(const void *byte) {
    __builtin_prefetch(byte, 0, 3);
}

ALWAYS_INLINE const char *line_of(const void *byte) {
    return (const char *)((uintptr_t)byte / CACHE_LINE * CACHE_LINE);
}

/* All lines of a row. */
ALWAYS_INLINE void prefetch_row(const void *row, int64_t bytes) {
    const char *end = (const char *)row + bytes;
    for (const char *line = line_of(row); line < end; line += CACHE_LINE)
        prefetch_line(line);
}

/* All lines of a row to the level 1 cache, which has no room for more than a few rows. */
ALWAYS_INLINE void prefetch_row_near(const void *row, int64_t bytes) {
    const char *end = (const char *)row + bytes;
    for (const char *line = line_of(row); line < end; line += CACHE_LINE)
        prefetch_line_near(line);
}

#endif
