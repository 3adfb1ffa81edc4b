/*
 * Merging partial results of one row: attention over disjoint sets of keys, computed apart.
 */
#ifndef FLASH_KERNELS_CPU_COMBINE_H
#define FLASH_KERNELS_CPU_COMBINE_H

#include <stdint.h>

/* The partial results of a row; any alignment. */
typedef struct combine_partials {
    const void *o;      /* [n_partials] rows of d_head elements */
    int32_t dtype;      /* of o */
    int64_t o_stride;   /* elements from one partial's row to the next one's */
    const float *lse;   /* [n_partials]; -infinity: saw no key, its o is not looked at */
    int64_t lse_stride; /* elements from one partial's LSE to the next one's */
    int64_t n_partials;
} combine_partials_t;

/* Writes the merged row to o[0 ... d_head) of type dtype_o, and returns its LSE. */
float combine_row(const combine_partials_t *partials, int64_t d_head, void *o, int32_t dtype_o);

#endif
