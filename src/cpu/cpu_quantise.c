/*
 * flash_quantise() on the CPU shares the heads of sequences that have a scale among threads.
 */
#include "cpu/cpu_quantise.h"

#include "core/status.h"
#include "cpu/thread_pool.h"
#include "kernels/common/dtype.h"
#include "kernels/common/quantise.h"
#include "kernels/common/sequence.h"
#include "kernels/cpu/quantise_rows.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

typedef struct quantise_call {
    const flash_quantise_args_t *args;
    atomic_int_least64_t next; /* scale of [batch, n_scales] */
} quantise_call_t;

/* The tokens of a sequence, counted as the strides of tokens do. */
typedef struct tokens {
    int64_t first;
    int64_t n;
} tokens_t;

static tokens_t tokens_of(const flash_quantise_args_t *a, int64_t b) {
    if (a->cu_seqlens == NULL)
        return (tokens_t){0, a->seqlen};
    const int64_t first = flash_load_length(a->cu_seqlens, b);
    return (tokens_t){first, flash_load_length(a->cu_seqlens, b + 1) - first};
}

static int64_t offset(const flash_tensor_t *tensor, int64_t b, int64_t token, int64_t head) {
    return (b * tensor->stride_batch + token * tensor->stride_seq + head * tensor->stride_head) *
           dtype_size(tensor->dtype);
}

static quantise_rows_t rows_of(const flash_quantise_args_t *a, int64_t b, int64_t head) {
    const tokens_t tokens = tokens_of(a, b);
    return (quantise_rows_t){
        .x = (const char *)a->x.data + offset(&a->x, b, tokens.first, head),
        .x_stride = a->x.stride_seq * dtype_size(a->x.dtype),
        .dtype = a->x.dtype,
        .codes = (uint8_t *)a->codes.data + offset(&a->codes, b, tokens.first, head),
        .codes_stride = a->codes.stride_seq,
        .n = tokens.n,
        .d = a->d_head,
        .mean = a->mean ? (char *)a->mean +
                              (b * a->n_heads + head) * a->d_head * (int64_t)sizeof *a->mean
                        : NULL,
        .turned = a->flags & FLASH_QUANTISE_HADAMARD ? quantise_turned_columns(a->d_head) : 0};
}

static void store_scale(const flash_quantise_args_t *a, int64_t index, float scale) {
    memcpy((char *)a->scale + index * (int64_t)sizeof scale, &scale, sizeof scale);
}

/* Each row gets a scale of its own. */
static void quantise_tokens(const flash_quantise_args_t *a, int64_t b, int64_t head) {
    const quantise_rows_t all = rows_of(a, b, head);
    const int64_t first = a->cu_seqlens ? tokens_of(a, b).first : b * a->seqlen;
    if (all.mean)
        quantise_find_mean(&all);
    for (int64_t i = 0; i < all.n; i++) {
        const quantise_rows_t row = quantise_row_of(&all, i);
        const float scale = quantise_scale(quantise_largest(&row));
        store_scale(a, (first + i) * a->n_heads + head, scale);
        quantise_store(&row, scale);
    }
}

/* Heads that lie beside each other share a scale. */
static void quantise_heads(const flash_quantise_args_t *a, int64_t b, int64_t of_scale) {
    const int64_t n = a->n_heads / a->n_scales, first = of_scale * n;
    float largest = 0;
    for (int64_t head = first; head < first + n; head++) {
        const quantise_rows_t rows = rows_of(a, b, head);
        if (rows.mean)
            quantise_find_mean(&rows);
        largest = fmaxf(largest, quantise_largest(&rows));
    }
    const float scale = quantise_scale(largest);
    store_scale(a, b * a->n_scales + of_scale, scale);
    for (int64_t head = first; head < first + n; head++) {
        const quantise_rows_t rows = rows_of(a, b, head);
        quantise_store(&rows, scale);
    }
}

static void quantise_work(void *argument, int32_t index) {
    quantise_call_t *call = argument;
    const flash_quantise_args_t *a = call->args;
    const int64_t n = a->batch * a->n_scales;
    (void)index;
    for (;;) {
        const int64_t i = atomic_fetch_add_explicit(&call->next, 1, memory_order_relaxed);
        if (i >= n)
            return;
        if (a->flags & FLASH_QUANTISE_TOKENS)
            quantise_tokens(a, i / a->n_scales, i % a->n_scales);
        else
            quantise_heads(a, i / a->n_scales, i % a->n_scales);
    }
}

flash_status_t cpu_quantise(const flash_quantise_args_t *args, int64_t n_tokens,
                            const executor_t *executor) {
    enum { SHARE_MIN_ELEMENTS = 1 << 16 };
    quantise_call_t call = {.args = args};
    parallel_t parallel;
    const double elements = (double)n_tokens * (double)args->n_heads * (double)args->d_head;
    FLASH_TRY(parallel_acquire(executor, &parallel));
    parallel_for(&parallel, elements < SHARE_MIN_ELEMENTS ? 1 : parallel.n_workers, quantise_work,
                 &call);
    parallel_release(&parallel);
    return FLASH_SUCCESS;
}
