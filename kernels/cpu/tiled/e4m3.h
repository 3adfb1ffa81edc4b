/*
 * This file scales what is computed from K and V of e4m3. Vectors load an element's bits as those
 * of fp16, which gives a number 2^8 times too small, the unit. Scores, softmax and sums know
 * nothing of it:
 *
 *   K's scale goes into Q, which is in fp32, so that any number does, a negative one, too;
 *   K's unit  goes into the softmax scale;
 *   V's scale and unit go into O, before it is stored.
 *
 * Scales of pages go into scores, before anything else does, and into P, after it was added up
 * (page_scales.h).
 */
#ifndef FLASH_KERNELS_CPU_TILED_E4M3_H
#define FLASH_KERNELS_CPU_TILED_E4M3_H

#include "cpu/cpu_kernel.h"
#include "cpu/rows.h"
#include "cpu/tiled/scratch.h"

/* Returns the problem whose softmax scale goes with loaded elements. */
static inline flash_params_t e4m3_params(const flash_params_t *p) {
    flash_params_t scaled = *p;
    scaled.softmax_scale *= E4M3_UNIT;
    return scaled;
}

/* Multiplies n rows of d elements, which are padded as in the scratch. */
static inline void scale_elements(float *rows, int64_t n, int64_t d, float scale) {
    for (int64_t row = 0; row < n; row++)
        for (int64_t i = 0; i < d; i++)
            rows[row * round_up(d, 16) + i] *= scale;
}

/* Multiplies the rows of Q of the task's one head by K's scale. */
static inline void e4m3_scale_q(const tile_scratch_t *t, const flash_params_t *p,
                                const cpu_task_t *task) {
    scale_elements(t->q, t->n_rows, t->d, cpu_head_scale(&p->k_scale, task));
}

/* Multiplies O of the task's one head by V's scale, after the last block. */
static inline void e4m3_scale_o(const tile_scratch_t *t, const flash_params_t *p,
                                const cpu_task_t *task) {
    scale_elements(t->o, t->n_rows, t->d_v, E4M3_UNIT);
    scale_elements(t->o, t->n_rows, t->d_v, cpu_head_scale(&p->v_scale, task));
}

#endif
