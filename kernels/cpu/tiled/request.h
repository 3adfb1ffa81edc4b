/*
 * Asking for keys in place: steps of keys (VEC_STEP_BYTES) to the level 1 cache, which has room for
 * them, whole blocks to level 2.
 */
#ifndef FLASH_KERNELS_CPU_TILED_REQUEST_H
#define FLASH_KERNELS_CPU_TILED_REQUEST_H

#include "cpu/prefetch.h"

ALWAYS_INLINE void request_line(const void *byte) {
    if (VEC_STEP_BYTES > 0)
        prefetch_line_near(byte);
    else
        prefetch_line(byte);
}

/* Part of a row: all lines of it but, where it begins within a line, the last one. */
ALWAYS_INLINE void request_part(const void *part, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += CACHE_LINE)
        request_line((const char *)part + i);
}

#endif
