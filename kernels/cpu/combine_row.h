/*
 * This file merges partial results of one row: attention over disjoint sets of keys.
 */
#ifndef FLASH_KERNELS_CPU_COMBINE_ROW_H
#define FLASH_KERNELS_CPU_COMBINE_ROW_H

#include <stdint.h>

/* These are the partial results of a row, at any alignment. They lie in one array each of O and of
 * LSE, or in n_partials tensors each. */
typedef struct combine_partials {
    const void *o;             /* [n_partials] rows of d_head elements, or NULL with o_list */
    const void *const *o_list; /* [n_partials] tensors; the row begins at element o_at */
    int64_t o_at;
    int64_t o_stride;             /* elements from one partial's row to the next one's */
    int32_t dtype;                /* of o */
    const float *lse;             /* [n_partials]; -infinity: no key was seen, o is not read */
    const float *const *lse_list; /* as o_list */
    int64_t lse_at;
    int64_t lse_stride; /* elements from one partial's LSE to the next one's */
    int64_t n_partials;
} combine_partials_t;

/* Writes the merged row, with its sink (-infinity: none), to o[0 ... d_head) of type dtype_o, and
 * returns its LSE, without the sink. o may be the row of one of the partials, if it has the same
 * type. */
float combine_row(const combine_partials_t *partials, float sink, int64_t d_head, void *o,
                  int32_t dtype_o);

#endif
