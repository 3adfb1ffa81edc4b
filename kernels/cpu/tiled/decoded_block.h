/*
 * Few rows read keys once. Where these are latent tokens or quantised blocks, or K and V are of two
 * types, a block of K, then of V, is decoded to fp32 where packed keys would lie, and is in place
 * there. A tile of rows reads quantised blocks of both as they are (quant_rows.h).
 */
#ifndef FLASH_KERNELS_CPU_TILED_DECODED_BLOCK_H
#define FLASH_KERNELS_CPU_TILED_DECODED_BLOCK_H

#include "cpu/tiled/encoded_rows.h"
#include "cpu/tiled/in_place.h"
#include "cpu/tiled/scratch.h"
#include "cpu/tiled/types.h"
#include "cpu/tiled/words.h"

/* Decodes a row of d columns, with zeros behind them up to a multiple of 16. */
ALWAYS_INLINE void decode_row(int32_t dtype, const char *row, int64_t d, float *to) {
    if (dtype == FLASH_DTYPE_LATENT_E4M3)
        decode_latent(row, to);
    else if (has_quant_blocks(dtype))
        decode_quantised(dtype, row, d, to);
    else
        for (int64_t i = 0; i < round_up(d, 16); i += VEC_WIDTH)
            vec_store(FLASH_DTYPE_FP32, to + i, load_columns(dtype, row, i, d));
}

/* Decodes n rows, and prefetches as many of `next`. */
ALWAYS_INLINE void decode_run(int32_t dtype, const int64_t d, const encoded_rows_t *rows,
                              const encoded_rows_t *next, int32_t n, float *to) {
    for (int32_t i = 0; i < n; i++) {
        float *row = to + i * round_up(d, 16);
        prefetch_row(next->first + i * next->stride, key_bytes(dtype, d));
        if (rows->in_hole)
            memset(row, 0, (size_t)round_up(d, 16) * sizeof *row);
        else
            decode_row(dtype, rows->first + i * rows->stride, d, row);
    }
}

ALWAYS_INLINE void decode_runs(int32_t dtype, const int64_t d, const encoded_keys_t *encoded,
                               float *to) {
    flash_range_t keys = encoded->keys, after = encoded->after;
    while (keys.begin < keys.end) {
        const encoded_rows_t rows = first_rows(encoded, keys);
        const bool some = after.begin < after.end;
        const encoded_rows_t next = some ? first_rows(encoded, after) : rows;
        const int32_t n = min32(rows.n, next.n);
        decode_run(dtype, d, &rows, &next, n, to);
        keys.begin += n;
        after.begin += n;
        to += n * round_up(d, 16);
    }
}

/* Decodes keys of a type that is a constant at each call; common head dimensions are compiled as
 * constants. */
ALWAYS_INLINE void decode_rows(int32_t dtype, const encoded_keys_t *encoded, float *to) {
    if (encoded->d == 128)
        decode_runs(dtype, 128, encoded, to);
    else if (encoded->d == 64)
        decode_runs(dtype, 64, encoded, to);
    else
        decode_runs(dtype, encoded->d, encoded, to);
}

NEVER_INLINE void decode_fp32(const encoded_keys_t *encoded, float *to) {
    decode_rows(FLASH_DTYPE_FP32, encoded, to);
}

NEVER_INLINE void decode_fp16(const encoded_keys_t *encoded, float *to) {
    decode_rows(FLASH_DTYPE_FP16, encoded, to);
}

NEVER_INLINE void decode_bf16(const encoded_keys_t *encoded, float *to) {
    decode_rows(FLASH_DTYPE_BF16, encoded, to);
}

NEVER_INLINE void decode_latent_tokens(const encoded_keys_t *encoded, float *to) {
    decode_runs(FLASH_DTYPE_LATENT_E4M3, LATENT_COLUMNS, encoded, to);
}

NEVER_INLINE void decode_q8_0(const encoded_keys_t *encoded, float *to) {
    decode_rows(FLASH_DTYPE_Q8_0, encoded, to);
}

NEVER_INLINE void decode_q4_0(const encoded_keys_t *encoded, float *to) {
    decode_rows(FLASH_DTYPE_Q4_0, encoded, to);
}

/* Decodes keys to `to`, round_up(d, 16) numbers for each, and returns where they lie. */
static inline in_place_t decode_keys(const encoded_keys_t *encoded, float *to) {
    const int32_t dtype = encoded->from.dtype;
    const in_place_t decoded = {.data = (const char *)to,
                                .prefetch = (const char *)to,
                                .stride = round_up(encoded->d, 16),
                                .n_heads = 1,
                                .adjoin = true};
    DTYPES_KNOWN(7); /* E4M3 is never decoded */
    if (has_kernel_of(FLASH_DTYPE_FP32) && dtype == FLASH_DTYPE_FP32)
        decode_fp32(encoded, to);
    else if (keys_are(dtype, FLASH_DTYPE_FP16))
        decode_fp16(encoded, to);
    else if (keys_are(dtype, FLASH_DTYPE_BF16))
        decode_bf16(encoded, to);
    else if (keys_are(dtype, FLASH_DTYPE_LATENT_E4M3))
        decode_latent_tokens(encoded, to);
    else if (keys_are(dtype, FLASH_DTYPE_Q8_0))
        decode_q8_0(encoded, to);
    else if (keys_are(dtype, FLASH_DTYPE_Q4_0))
        decode_q4_0(encoded, to);
    return decoded;
}

/* Decodes the task's K. */
static inline in_place_t decode_k(const tile_scratch_t *t, const flash_params_t *p,
                                  const cpu_task_t *task, int32_t dtype, flash_range_t keys,
                                  flash_range_t after) {
    const encoded_keys_t k = {{p, task, cpu_kv_k(p), dtype}, t->d, keys, after};
    return decode_keys(&k, t->k);
}

/* Decodes the task's V over its K, whose scores are known, so that a level 1 cache has both. Packed
 * K and V lie side by side: they have room for it. */
static inline in_place_t decode_v(const tile_scratch_t *t, const flash_params_t *p,
                                  const cpu_task_t *task, flash_range_t keys, flash_range_t after) {
    const encoded_keys_t v = {{p, task, cpu_kv_v(p), p->v_dtype}, t->d_v, keys, after};
    return decode_keys(&v, t->k);
}

#endif
