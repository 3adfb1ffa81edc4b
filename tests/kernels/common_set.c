/*
 * The candidates that are no instruction set's own.
 */
#include "common_set.h"

#include "cpu/combine_row.h"
#include "flashattn.h"

static void run_merge_partials(const problem_t *p, void *const outputs[]) {
    float *lse = outputs[1];
    const combine_partials_t partials = {.o = p->keys,
                                         .o_stride = p->stride,
                                         .dtype = p->dtype,
                                         .lse = p->x,
                                         .lse_stride = 1,
                                         .n_partials = p->n_keys};
    *lse = combine_row(&partials, p->sink, p->d, outputs[0], FLASH_DTYPE_FP32);
}

const instruction_set_t common_set = {
    .name = "common",
    .vec_width = 1,
    .tile_columns = 1,
    .word_elements = 1,
    .candidates = {[CANDIDATE_merge_partials] = {NULL, run_merge_partials, NULL}}};
