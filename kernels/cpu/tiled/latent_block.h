/*
 * Few rows read tokens of LATENT_E4M3 once: a block of keys is decoded to where packed keys would
 * lie, and is K and V in place there.
 */
#ifndef FLASH_KERNELS_CPU_TILED_LATENT_BLOCK_H
#define FLASH_KERNELS_CPU_TILED_LATENT_BLOCK_H

#include "cpu/row_cursor.h"
#include "cpu/tiled/in_place.h"
#include "cpu/tiled/latent.h"
#include "cpu/tiled/scratch.h"

/* Returns a cursor over tokens of the task's one head, which lie in pages or in one run. */
static inline row_cursor_t cursor_at_tokens(const paged_keys_t *pages, flash_range_t keys) {
    if (cpu_is_paged(pages->p))
        return cursor_at_pages(pages, LATENT_COLUMNS, keys);
    return cursor_at_keys(pages->task, pages->dtype, LATENT_COLUMNS, pages->kv.data,
                          pages->kv.stride, keys);
}

/* Decodes `keys`, and prefetches those `after` them. */
ALWAYS_INLINE in_place_t decode_tokens(const tile_scratch_t *t, const flash_params_t *p,
                                       const cpu_task_t *task, flash_range_t keys,
                                       flash_range_t after) {
    const paged_keys_t pages = {p, task, cpu_kv_k(p), FLASH_DTYPE_LATENT_E4M3};
    row_cursor_t tokens = cursor_at_tokens(&pages, keys);
    row_cursor_t prefetch = cursor_at_tokens(&pages, after);
    const in_place_t decoded = {.data = (const char *)t->k,
                                .prefetch = (const char *)t->k,
                                .stride = LATENT_COLUMNS,
                                .n_heads = 1,
                                .adjoin = true};
    float *to = t->k;
    for (const char *token; (token = cursor_next(&tokens)) != NULL; to += LATENT_COLUMNS) {
        prefetch_next(&prefetch);
        decode_latent(token, to);
    }
    return decoded;
}

#endif
