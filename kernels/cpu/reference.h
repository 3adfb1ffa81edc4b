/*
 * The reference family is scalar attention for any CPU with every feature, one row after the other.
 * It is written to be read; the vector families are tested against it.
 */
#ifndef FLASH_KERNELS_CPU_REFERENCE_H
#define FLASH_KERNELS_CPU_REFERENCE_H

#include "common/bias.h"
#include "common/dropout.h"
#include "common/scale.h"
#include "cpu/holes.h"
#include "cpu/mask_elements.h"
#include "cpu/rows.h"

#include <math.h>
#include <string.h>

/* Consecutive keys whose sum is fp32; the sum of all keys is double. A chain of 2^20
 * additions in fp32 would lose four digits. */
enum { REFERENCE_PART_KEYS = 256 };

/* This is the running result of a row: O = total / sum_total, relative to the running maximum,
 * before the sink joins. */
typedef struct reference_row {
    flash_bias_row_t bias;
    flash_dropout_head_t dropout;
    int64_t query;
    const float *q;     /* [d], in fp32 */
    float *accumulator; /* [d_v], of the last keys, which total lacks */
    double *total;      /* [d_v] */
    int64_t d;
    int64_t d_v;
    float maximum;
    float sum; /* of the keys in accumulator */
    double sum_total;
} reference_row_t;

static inline void reference_scale_q(const flash_params_t *p, const cpu_task_t *task, int64_t row,
                                     int64_t d, float *q) {
    const float scale = cpu_q_scale(p, task, cpu_row(p, task, row));
    for (int64_t i = 0; i < d; i++)
        q[i] *= scale;
}

static inline void reference_load_q(const flash_params_t *p, const cpu_task_t *task, int64_t row,
                                    int64_t d, float *q) {
    const int64_t index = cpu_row_index(task, &p->q_stride, cpu_row(p, task, row));
    for (int64_t i = 0; i < d; i++)
        q[i] = element_load(p->q, index + i, p->q_dtype);
    if (p->q_dtype == FLASH_DTYPE_E4M3)
        reference_scale_q(p, task, row, d, q);
}

static inline float reference_score(const flash_params_t *p, const cpu_task_t *task, int32_t dtype,
                                    const reference_row_t *row, int64_t key) {
    const cpu_kv_t k = cpu_kv_k(p);
    const int64_t index = cpu_key_index(p, task, &k, key);
    float dot = 0;
    for (int64_t i = 0; i < row->d; i++)
        dot += row->q[i] * key_load(p->k, index, i, dtype);
    const float k_scale = cpu_head_scale(&p->k_scale, task) *
                          cpu_page_scale(p, task, &p->k_scale, k.table, key, task->head_kv);
    const float score = dot * k_scale * p->softmax_scale;
    const float capped = p->softcap != 0 ? p->softcap * tanhf(score / p->softcap) : score;
    return cpu_biased_score(&p->bias, &row->bias, capped, (int32_t)key);
}

/* Raises the maximum, and rescales what was summed so far. */
static inline void reference_rescale(reference_row_t *row, float maximum) {
    const float factor = expf(row->maximum - maximum);
    row->maximum = maximum;
    row->sum *= factor;
    row->sum_total *= (double)factor;
    for (int64_t i = 0; i < row->d_v; i++) {
        row->accumulator[i] *= factor;
        row->total[i] *= (double)factor;
    }
}

static inline void reference_end_part(reference_row_t *row) {
    row->sum_total += (double)row->sum;
    row->sum = 0;
    for (int64_t i = 0; i < row->d_v; i++) {
        row->total[i] += (double)row->accumulator[i];
        row->accumulator[i] = 0;
    }
}

static inline void reference_add_value(const flash_params_t *p, int32_t dtype, reference_row_t *row,
                                       int64_t index, float weight) {
    for (int64_t i = 0; i < row->d_v; i++)
        row->accumulator[i] += weight * key_load(p->v, index, i, dtype);
}

/* Returns what dropout multiplies the weight of a key by. */
static inline float reference_factor(const flash_params_t *p, const reference_row_t *row,
                                     int64_t key) {
    return flash_drops(&p->dropout)
               ? flash_dropout_factor(&p->dropout, &row->dropout, row->query, key)
               : 1;
}

static inline void reference_add_key(const flash_params_t *p, const cpu_task_t *task, int32_t dtype,
                                     reference_row_t *row, int64_t key) {
    const float score = reference_score(p, task, dtype, row, key);
    if (score > row->maximum)
        reference_rescale(row, score);
    const float reference_maximum =
        row->maximum == -INFINITY ? 0 : row->maximum; /* -inf - -inf is NaN */
    const float weight = expf(score - reference_maximum);
    const float kept = weight * reference_factor(p, row, key);
    const cpu_kv_t v = cpu_kv_v(p);
    const int64_t index = cpu_key_index(p, task, &v, key);
    const float of_page = cpu_page_scale(p, task, &p->v_scale, v.table, key, task->head_kv);
    row->sum += weight;
    if (p->v_dtype == dtype) /* a constant */
        reference_add_value(p, dtype, row, index, kept * of_page);
    else
        reference_add_value(p, p->v_dtype, row, index, kept * of_page);
}

/* Returns the sum with the weight of the row's sink, as sum_with_sink() does, but in double. */
static inline double reference_divisor(const flash_params_t *p, const cpu_task_t *task,
                                       const reference_row_t *row, cpu_row_t r) {
    const float sink = cpu_row_sink(p, task, r);
    return row->sum_total != 0 && sink != -INFINITY
               ? row->sum_total + exp((double)sink - (double)row->maximum)
               : row->sum_total;
}

static inline void reference_store(const flash_params_t *p, const cpu_task_t *task,
                                   const reference_row_t *row, int64_t row_index) {
    const cpu_row_t r = cpu_row(p, task, row_index);
    const double v_scale = (double)cpu_head_scale(&p->v_scale, task);
    const double divisor = reference_divisor(p, task, row, r);
    void *o = task->o_partial ? task->o_partial : p->o;
    const int32_t dtype_o = task->o_partial ? FLASH_DTYPE_FP32 : p->o_dtype;
    const int64_t index =
        task->o_partial ? row_index * row->d_v : cpu_row_index(task, &p->o_stride, r);
    for (int64_t i = 0; i < row->d_v; i++)
        element_store(o, index + i, dtype_o,
                      row->sum_total != 0 ? (float)(row->total[i] / divisor * v_scale) : 0);
    if (cpu_wants_lse(p, task))
        cpu_store_lse(p, task, row_index, r,
                      row->sum_total != 0 ? row->maximum + logf((float)row->sum_total) : -INFINITY);
}

static inline reference_row_t reference_start(const flash_params_t *p, const cpu_task_t *task,
                                              int64_t row_index, void *scratch) {
    const int64_t d = p->d_head, d_v = p->d_head_v;
    double *total = scratch;
    float *q = (float *)(total + d_v);
    const cpu_row_t r = cpu_row(p, task, row_index);
    const flash_bias_row_t bias =
        flash_bias_row(p, &task->sequence, task->batch_index, r.head, r.query);
    reference_load_q(p, task, row_index, d, q);
    memset(q + d, 0, (size_t)d_v * sizeof *q);
    memset(total, 0, (size_t)d_v * sizeof *total);
    return (reference_row_t){
        .bias = bias,
        .dropout = flash_dropout_head(&p->dropout, p->n_heads, task->batch_index, r.head),
        .query = r.query,
        .q = q,
        .accumulator = q + d,
        .total = total,
        .d = d,
        .d_v = d_v,
        .maximum = -INFINITY};
}

static inline void reference_forward(const flash_config_t *config, const flash_params_t *p,
                                     const cpu_task_t *task, void *scratch) {
    for (int64_t r = 0; r < task->row_end - task->row_begin; r++) {
        reference_row_t row = reference_start(p, task, r, scratch);
        const flash_range_t keys = cpu_row_keys(p, task, cpu_row(p, task, r));
        for (int64_t key = keys.begin; key < keys.end; key++) {
            if (!cpu_in_hole(p, task, key))
                reference_add_key(p, task, config->dtype, &row, key);
            if ((key + 1) % REFERENCE_PART_KEYS == 0)
                reference_end_part(&row);
        }
        reference_end_part(&row);
        reference_store(p, task, &row, r);
    }
}

#endif
