/*
 * A call that wants dQ beside dK or dV may keep dS in its workspace: the kernel of dK and dV writes
 * it, and a second kernel of the same row computes dQ of it. So S and dP are computed once, in five
 * products instead of seven. This plan says whether, and for how many heads at a time. It depends
 * on sizes, types and the row of dK and dV alone, and the workspace of the call decides whether it
 * is followed.
 *
 * Where dS of all heads takes more than MOST_KEPT_DS bytes, it is kept for a section of them at a
 * time: whole batch entries, or some K/V heads of one. Both kernels are launched for each section
 * in turn, and the sections share the memory.
 */
#ifndef FLASH_CUDA_PLAN_KEPT_DS_H
#define FLASH_CUDA_PLAN_KEPT_DS_H

#include "config/kernel_table.h"
#include "core/device.h"
#include "core/problem.h"

/* 2.5 GiB, in which 8 heads of 16384 queries and keys, causal, are a section. */
#define MOST_KEPT_DS (UINT64_C(5) << 29)

typedef struct kept_ds_plan {
    uint64_t size;           /* bytes; 0: dS is not kept */
    flash_kept_ds_t ds;      /* without data */
    flash_section_t section; /* the first one; the last ones may be smaller */
} kept_ds_plan_t;

/* kernel: of dK and dV. */
kept_ds_plan_t plan_kept_ds(const flash_kernel_t *kernel, const problem_t *problem,
                            const device_t *device);

/* Moves on to the next section, and says whether there is one. */
bool plan_next_section(const kept_ds_plan_t *plan, const flash_params_t *p,
                       flash_section_t *section);

#endif
