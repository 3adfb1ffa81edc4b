/*
 * flash_combine() on the CPU shares the rows among threads.
 */
#include "cpu/cpu_combine.h"

#include "core/status.h"
#include "cpu/thread_pool.h"
#include "kernels/common/dtype.h"
#include "kernels/common/sink.h"
#include "kernels/cpu/combine_row.h"

#include <stdatomic.h>
#include <string.h>

typedef struct combine_call {
    const flash_combine_args_t *args;
    atomic_int_least64_t next; /* row of [batch, n_heads, seqlen_q] / ROWS_AT_A_TIME */
} combine_call_t;

enum { ROWS_AT_A_TIME = 16 };

static int64_t tensor_index(const flash_tensor_t *tensor, int64_t batch, int64_t seq,
                            int64_t head) {
    return batch * tensor->stride_batch + seq * tensor->stride_seq + head * tensor->stride_head;
}

/* A row of [batch, seqlen_q, n_heads]. */
typedef struct row {
    int64_t batch;
    int64_t seq;
    int64_t head;
} row_t;

/* Returns the address of an element of fp32 data of any alignment. */
static const float *float_at(const float *data, int64_t index) {
    return (const float *)(const void *)((const char *)data + index * (int64_t)sizeof *data);
}

/* If n_partials is 0, pointers and strides mean nothing. */
static combine_partials_t partials_of(const flash_combine_args_t *a, const row_t *row) {
    if (a->n_partials == 0)
        return (combine_partials_t){.dtype = a->o_partial.dtype};
    const int64_t o_at = tensor_index(&a->o_partial, row->batch, row->seq, row->head);
    const int64_t lse_at = row->batch * a->lse_partial_stride_batch +
                           row->seq * a->lse_partial_stride_seq +
                           row->head * a->lse_partial_stride_head;
    combine_partials_t partials = {.o_list = a->o_partials,
                                   .o_at = o_at,
                                   .o_stride = a->stride_partial,
                                   .dtype = a->o_partial.dtype,
                                   .lse_list = a->lse_partials,
                                   .lse_at = lse_at,
                                   .lse_stride = a->lse_partial_stride,
                                   .n_partials = a->n_partials};
    if (a->o_partials == NULL)
        partials.o = (const char *)a->o_partial.data + o_at * dtype_size(a->o_partial.dtype);
    if (a->lse_partials == NULL)
        partials.lse = float_at(a->lse_partial, lse_at);
    return partials;
}

static void combine_numbered_row(const flash_combine_args_t *a, int64_t number) {
    const row_t row = {.batch = number / a->seqlen_q / a->n_heads,
                       .seq = number % a->seqlen_q,
                       .head = number / a->seqlen_q % a->n_heads};
    const combine_partials_t partials = partials_of(a, &row);
    const int64_t o_at = tensor_index(&a->o, row.batch, row.seq, row.head);
    const int64_t lse_at = row.batch * a->lse_stride_batch + row.seq * a->lse_stride_seq +
                           row.head * a->lse_stride_head;
    char *o = (char *)a->o.data + o_at * dtype_size(a->o.dtype);
    const float sink = flash_sink_at(a->sinks, row.head);
    const float lse = combine_row(&partials, sink, a->d_head, o, a->o.dtype);
    if (a->lse != NULL)
        memcpy((char *)a->lse + lse_at * (int64_t)sizeof lse, &lse, sizeof lse);
}

static void combine_work(void *argument, int32_t index) {
    combine_call_t *call = argument;
    const flash_combine_args_t *a = call->args;
    const int64_t n_rows = a->batch * a->n_heads * a->seqlen_q;
    (void)index;
    for (;;) {
        const int64_t first =
            ROWS_AT_A_TIME * atomic_fetch_add_explicit(&call->next, 1, memory_order_relaxed);
        if (first >= n_rows)
            return;
        for (int64_t row = first; row < first + ROWS_AT_A_TIME && row < n_rows; row++)
            combine_numbered_row(a, row);
    }
}

flash_status_t cpu_combine(const flash_combine_args_t *args, const executor_t *executor) {
    enum { SHARE_MIN_ELEMENTS = 1 << 18 };
    combine_call_t call = {.args = args};
    parallel_t parallel;
    const double elements = (double)args->batch * (double)args->n_heads * (double)args->seqlen_q *
                            (double)args->d_head * (double)args->n_partials;
    FLASH_TRY(parallel_acquire(executor, &parallel));
    parallel_for(&parallel, elements < SHARE_MIN_ELEMENTS ? 1 : parallel.n_workers, combine_work,
                 &call);
    parallel_release(&parallel);
    return FLASH_SUCCESS;
}
