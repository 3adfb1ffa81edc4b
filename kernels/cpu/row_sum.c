/*
 * This file sums up a row in double.
 */
#include "cpu/row_sum.h"

#include "common/sink.h"
#include "cpu/convert.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { CHUNK = 8 };

static int64_t index_of(const q_row_t *row, const flash_strides_t *stride) {
    return row->batch_index * stride->batch + (row->sequence.q_begin + row->query) * stride->seq +
           row->head * stride->head;
}

/* Returns a number of LSE or of its gradient. */
static double number_of(const flash_params_t *p, const q_row_t *row, const float *numbers,
                        const flash_strides_t *stride) {
    const int64_t head_stride =
        stride->head == FLASH_STRIDE_TOTAL ? p->cu_seqlens_q[p->batch] : stride->head;
    const int64_t at = row->batch_index * stride->batch +
                       (row->sequence.q_begin + row->query) * stride->seq + row->head * head_stride;
    return (double)element_load(numbers, at, FLASH_DTYPE_FP32);
}

/* Loads CHUNK elements. */
static inline void load_chunk(const void *data, int64_t index, int32_t dtype, float *to) {
    const void *from = element_at(data, index, dtype);
    uint16_t halves[CHUNK];
    if (dtype == FLASH_DTYPE_FP32) {
        memcpy(to, from, CHUNK * sizeof *to);
        return;
    }
    memcpy(halves, from, sizeof halves);
    if (dtype == FLASH_DTYPE_BF16)
        for (int i = 0; i < CHUNK; i++)
            to[i] = fp32_from_bf16(halves[i]);
    else
        for (int i = 0; i < CHUNK; i++)
            to[i] = fp32_from_fp16(halves[i]);
}

/* Returns the sum over a row of dO * O, by CHUNK sums that the compiler keeps in vectors. */
static double dot_of(const flash_params_t *p, const flash_gradients_t *g, const q_row_t *row) {
    const int64_t o = index_of(row, &p->o_stride), d_o = index_of(row, &g->d_o_stride);
    double sums[CHUNK] = {0}, dot = 0;
    int64_t i = 0;
    for (; i + CHUNK <= p->d_head_v; i += CHUNK) {
        float x[CHUNK], y[CHUNK];
        load_chunk(p->o, o + i, p->o_dtype, x);
        load_chunk(g->d_o, d_o + i, p->o_dtype, y);
        for (int j = 0; j < CHUNK; j++)
            sums[j] += (double)x[j] * (double)y[j];
    }
    for (int j = 0; j < CHUNK; j++)
        dot += sums[j];
    for (; i < p->d_head_v; i++)
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

/* Returns the part of dLSE in D, which P is multiplied by. */
static double lse_part(double d_lse, double lse, double log_sum) {
    return d_lse * exp(fmin(log_sum - lse, FLASH_SINK_MOST));
}

/* Returns the weight of a sink in its row. */
static double sink_weight(double sink, double log_sum) {
    return sink == INFINITY && log_sum == INFINITY ? 1 : exp(sink - log_sum);
}

double cpu_sum_row(const flash_params_t *p, const flash_gradients_t *g, const q_row_t *row) {
    const int64_t at =
        flash_row_index(p, g, &row->sequence, row->batch_index, row->head, row->query);
    const double lse = number_of(p, row, p->lse, &p->lse_stride);
    const bool sees_no_key = lse == -INFINITY;
    const double sink = (double)flash_sink_at(p->sinks, row->head);
    const double log_sum = sees_no_key ? INFINITY : add_sink(lse, sink);
    const double dot = sees_no_key ? 0 : dot_of(p, g, row);
    const double d_lse = g->d_lse ? number_of(p, row, g->d_lse, &g->d_lse_stride) : 0;
    const double d = sees_no_key || d_lse == 0 ? dot : dot - lse_part(d_lse, lse, log_sum);
    g->row_d[at] = (float)d;
    g->row_log_sum[at] = (float)log_sum;
    return sees_no_key || sink == -INFINITY ? 0 : -sink_weight(sink, log_sum) * dot;
}
