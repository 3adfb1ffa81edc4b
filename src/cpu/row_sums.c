/*
 * Blocks of queries are items of work. Each leaves its part of the gradients of sinks in a place of
 * its own, and the parts are added up in the order of the blocks.
 */
#include "cpu/row_sums.h"

#include "core/int64.h"
#include "cpu/items.h"
#include "kernels/common/sink.h"
#include "kernels/cpu/convert.h"

#include <math.h>
#include <string.h>

enum { QUERIES_PER_ITEM = 64 };

typedef struct row_sums {
    const flash_params_t *p;
    const flash_gradients_t *g;
    double *sink_sums; /* [items, n_heads] */
    int64_t n_blocks;  /* of a sequence */
} row_sums_t;

/* A row of Q: query `query` of a head. */
typedef struct row {
    flash_sequence_t sequence;
    int32_t batch_index;
    int32_t head;
    int64_t query;
} row_t;

/* ---- One row ---- */

static int64_t index_of(const row_t *row, const flash_strides_t *stride) {
    return row->batch_index * stride->batch + (row->sequence.q_begin + row->query) * stride->seq +
           row->head * stride->head;
}

/* Returns a number of LSE or of its gradient. */
static double number_of(const flash_params_t *p, const row_t *row, const float *numbers,
                        const flash_strides_t *stride) {
    const int64_t head_stride =
        stride->head == FLASH_STRIDE_TOTAL ? p->cu_seqlens_q[p->batch] : stride->head;
    const int64_t at = row->batch_index * stride->batch +
                       (row->sequence.q_begin + row->query) * stride->seq + row->head * head_stride;
    return (double)element_load(numbers, at, FLASH_DTYPE_FP32);
}

static double dot_of(const flash_params_t *p, const flash_gradients_t *g, const row_t *row) {
    const int64_t o = index_of(row, &p->o_stride), d_o = index_of(row, &g->d_o_stride);
    double dot = 0;
    for (int64_t i = 0; i < p->d_head_v; i++)
        dot += (double)element_load(p->o, o + i, p->o_dtype) *
               (double)element_load(g->d_o, d_o + i, p->o_dtype);
    return dot;
}

/* Returns log(exp(lse) + exp(sink)). Without a sink that is LSE itself, of any value. */
static double add_sink(double lse, double sink) {
    if (sink == -INFINITY)
        return lse;
    const double most = fmax(lse, sink), least = fmin(lse, sink);
    if (isnan(lse) || isnan(sink))
        return NAN;
    return most == INFINITY ? INFINITY : most + log1p(exp(least - most));
}

/* Writes what gradients need of a row. Returns its part of the gradient of the sink. */
static double sum_row(const row_sums_t *sums, const row_t *row) {
    const flash_params_t *p = sums->p;
    const flash_gradients_t *g = sums->g;
    const int64_t at =
        flash_row_index(p, g, &row->sequence, row->batch_index, row->head, row->query);
    const double lse = number_of(p, row, p->lse, &p->lse_stride);
    const bool sees_no_key = lse == -INFINITY;
    const double sink = (double)flash_sink_at(p->sinks, row->head);
    const double log_sum = sees_no_key ? INFINITY : add_sink(lse, sink);
    const double dot = sees_no_key ? 0 : dot_of(p, g, row);
    const double d_lse = g->d_lse ? number_of(p, row, g->d_lse, &g->d_lse_stride) : 0;
    const double d = sees_no_key || d_lse == 0 ? dot : dot - d_lse * exp(log_sum - lse);
    g->row_d[at] = (float)d;
    g->row_log_sum[at] = (float)log_sum;
    return sees_no_key || sink == -INFINITY ? 0 : -exp(sink - log_sum) * dot;
}

/* ---- All rows ---- */

static void sum_block(void *context, int64_t item, int32_t worker) {
    const row_sums_t *sums = context;
    const int32_t b = (int32_t)(item / sums->n_blocks);
    row_t row = {.sequence = flash_sequence(sums->p, b), .batch_index = b};
    const int64_t begin = item % sums->n_blocks * QUERIES_PER_ITEM;
    const int64_t end = min64(begin + QUERIES_PER_ITEM, row.sequence.len_q);
    (void)worker;
    for (row.head = 0; row.head < sums->p->n_heads; row.head++) {
        double of_sink = 0;
        for (row.query = begin; row.query < end; row.query++)
            of_sink += sum_row(sums, &row);
        if (sums->sink_sums)
            sums->sink_sums[item * sums->p->n_heads + row.head] = of_sink;
    }
}

static int64_t blocks_of(const flash_params_t *p) {
    return divide_up(p->seqlen_q, QUERIES_PER_ITEM);
}

static void store_sinks(const row_sums_t *sums, int64_t n_items) {
    for (int32_t head = 0; head < sums->p->n_heads; head++) {
        double total = 0;
        for (int64_t item = 0; item < n_items; item++)
            total += sums->sink_sums[item * sums->p->n_heads + head];
        element_store(sums->g->d_sinks, head, FLASH_DTYPE_FP32, (float)total);
    }
}

uint64_t cpu_sink_sums_size(const problem_t *problem) {
    const flash_params_t *p = &problem->params;
    const uint64_t n_items = (uint64_t)p->batch * (uint64_t)blocks_of(p);
    const uint64_t of_item = (uint64_t)p->n_heads * sizeof(double);
    return problem->gradients.d_sinks ? saturating_multiply(n_items, of_item) : 0;
}

void cpu_row_sums(const problem_t *problem, double *sink_sums, parallel_t *parallel) {
    row_sums_t sums = {.p = &problem->params,
                       .g = &problem->gradients,
                       .sink_sums = problem->gradients.d_sinks ? sink_sums : NULL,
                       .n_blocks = blocks_of(&problem->params)};
    const cpu_items_t items = {
        .n = problem->params.batch * sums.n_blocks, .work = sum_block, .context = &sums};
    cpu_items_run(parallel, parallel->n_workers, &items);
    if (sums.sink_sums)
        store_sinks(&sums, items.n);
}
