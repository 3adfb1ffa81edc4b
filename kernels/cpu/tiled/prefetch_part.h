/*
 * This file prefetches keys in place.
 */
#ifndef FLASH_KERNELS_CPU_TILED_PREFETCH_PART_H
#define FLASH_KERNELS_CPU_TILED_PREFETCH_PART_H

#include "cpu/prefetch.h"

#include <stdbool.h>

/* Keys go to the level 1 cache where a family reads them in steps (VEC_STEP_BYTES), for which it
 * has room; elsewhere to level 2. */
enum { STEPS_NEAR = VEC_STEP_BYTES > 0 };

ALWAYS_INLINE void prefetch_line_to(const void *byte, const bool near) {
    if (near)
        prefetch_line_near(byte);
    else
        prefetch_line(byte);
}

/* Prefetches part of a row: all of its lines but, where it begins within a line, the last one. */
ALWAYS_INLINE void prefetch_part(const void *part, int64_t bytes, const bool near) {
    for (int64_t i = 0; i < bytes; i += CACHE_LINE)
        prefetch_line_to((const char *)part + i, near);
}

#endif
