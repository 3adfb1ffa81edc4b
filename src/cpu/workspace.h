/*
 * These functions compute the size of a CPU call's workspace. The least workspace of a problem
 * suffices for every smaller one: of the same types, heads, head dimensions, flags and pointers,
 * with no larger batch, seqlen_q and seqlen_k. plan.h says what one problem uses, which can be more
 * than a larger one does: few rows have partial results where many have none. The least size is
 * therefore an upper bound, which never falls while a length or the batch grows; in what a call
 * gets beyond it, its plan makes itself fit.
 */
#ifndef FLASH_CPU_WORKSPACE_H
#define FLASH_CPU_WORKSPACE_H

#include "kernels/cpu/cpu_kernel.h"

enum { CPU_WORKSPACE_ALIGNMENT = 64 }; /* bytes, of each part */

/* ---- The parts, in this order, in multiples of the alignment; UINT64_MAX on overflow ---- */

/* first_item: int64 [batch + 1]. */
uint64_t cpu_workspace_items(const flash_params_t *params);

/* The copies of lengths follow: cpu_lengths_size(). */

/* n_left: int64 [batch, n_heads_kv]. */
uint64_t cpu_workspace_left(const flash_params_t *params);

/* Partial results: fp32 [batch, n_heads_kv, rows, width]. */
uint64_t cpu_workspace_partials(const flash_params_t *params, int64_t rows, int64_t width);

/* Packed K and V of a head whose tasks share at most shared_keys keys, wherever a window lets these
 * begin. */
uint64_t cpu_workspace_packed(const cpu_family_t *family, const flash_config_t *config,
                              const flash_params_t *params, int64_t shared_keys);

/* ---- The whole workspace ---- */

/* Returns the least size, at any alignment, that serves any problem up to this one, for any number
 * of threads; UINT64_MAX on overflow. */
uint64_t cpu_workspace_least(const cpu_family_t *family, const flash_config_t *config,
                             const flash_params_t *params);

#endif
