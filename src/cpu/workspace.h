/*
 * Bytes of the workspace of a CPU call. What suffices for a problem suffices for every smaller one:
 * of the same types, heads, d_head, flags and pointers, with no larger batch, seqlen_q and
 * seqlen_k, and no more threads. plan.h says what a problem itself needs, which may be more
 * than what a larger one does: few rows have partial results where many have none, short heads are
 * taken several at a time. The sizes here are therefore upper bounds, each of which never falls
 * while a length, the batch or the number of threads grows.
 */
#ifndef FLASH_CPU_WORKSPACE_H
#define FLASH_CPU_WORKSPACE_H

#include "kernels/cpu/cpu_kernel.h"

enum { CPU_WORKSPACE_ALIGNMENT = 64 }; /* bytes, of each part */

/* ---- Parts, in this order ---- All sizes are multiples of the alignment, and UINT64_MAX where
 * they do not fit 64 bits. */

/* int64 [batch + 1]: items of work before each sequence. */
uint64_t cpu_workspace_items(const flash_params_t *params);

/* Then cpu_lengths_size(): copies of the lengths of a ragged batch. */

/* int64 [batch, n_heads_kv]: a head's items that are not done. */
uint64_t cpu_workspace_left(const flash_params_t *params);

/* fp32 [batch, n_heads_kv, rows, width]: partial results, of so many rows of each head. */
uint64_t cpu_workspace_partials(const flash_params_t *params, int64_t rows, int64_t width);

/* Packed K and V of a head with so many keys. */
uint64_t cpu_workspace_packed(const cpu_family_t *family, const flash_config_t *config,
                              int64_t d_head, int64_t n_keys);

/* ---- The whole ---- Bytes at any alignment; UINT64_MAX where they do not fit 64 bits. */

/* With less no problem as large is served, whatever the number of threads. */
uint64_t cpu_workspace_least(const cpu_family_t *family, const flash_config_t *config,
                             const flash_params_t *params);

/* More gains nothing with so many threads. */
uint64_t cpu_workspace_full(const cpu_family_t *family, const flash_config_t *config,
                            const flash_params_t *params, int32_t n_threads);

#endif
