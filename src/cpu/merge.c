/*
 * The partial results of a K/V head whose keys were split are merged in the order of the splits.
 */
#include "cpu/merge.h"

#include "kernels/common/dtype.h"
#include "kernels/common/sink.h"
#include "kernels/cpu/combine_row.h"

#include <string.h>

/* Writes a row of O and returns its LSE. */
static float merge_row(const flash_params_t *p, const cpu_cut_t *cut,
                       const cpu_partials_t *partials, int64_t row, int64_t head, int64_t o_index) {
    const combine_partials_t parts = {.o = partials->o + row * p->d_head_v,
                                      .dtype = FLASH_DTYPE_FP32,
                                      .o_stride = cut->n_rows * p->d_head_v,
                                      .lse = partials->lse + row,
                                      .lse_stride = cut->n_rows,
                                      .n_partials = cut->n_splits};
    void *o = (char *)p->o + o_index * dtype_size(p->o_dtype);
    return combine_row(&parts, flash_sink_at(p->sinks, head), p->d_head_v, o, p->o_dtype);
}

void cpu_merge_splits(const flash_params_t *p, const cpu_cut_t *cut, int32_t batch_index,
                      int32_t head_kv, const cpu_partials_t *partials) {
    for (int64_t row = 0; row < cut->n_rows; row++) {
        const int64_t query = row / p->group;
        const int64_t head = (int64_t)head_kv * p->group + row % p->group;
        const int64_t at = batch_index * p->o_stride.batch +
                           (cut->sequence.q_begin + query) * p->o_stride.seq +
                           head * p->o_stride.head;
        const float lse = merge_row(p, cut, partials, row, head, at);
        if (p->lse == NULL)
            continue;
        const int64_t index = flash_lse_index(p, &cut->sequence, batch_index, (int32_t)head, query);
        memcpy((char *)p->lse + index * (int64_t)sizeof lse, &lse, sizeof lse);
    }
}
