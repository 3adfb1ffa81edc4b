/*
 * The backward pass of the reference family is scalar, in double, one row after the other. It is
 * written to be read; the vector families are tested against it.
 */
#ifndef FLASH_KERNELS_CPU_REFERENCE_BACKWARD_H
#define FLASH_KERNELS_CPU_REFERENCE_BACKWARD_H

#include "common/bias.h"
#include "common/dropout.h"
#include "cpu/backward_kernel.h"
#include "cpu/gradient_rows.h"
#include "cpu/mask_elements.h"

#include <math.h>
#include <string.h>

/* One row of Q, and where its elements are. */
typedef struct reference_query {
    flash_bias_row_t bias;
    flash_dropout_head_t dropout;
    int64_t query;
    flash_range_t keys; /* that it sees */
    int64_t q_index;
    int64_t d_o_index;
    double log_sum;
    double d;
} reference_query_t;

/* A pair of a row and a key in its range. */
typedef struct reference_pair {
    bool is_seen; /* no mask hides the key */
    double p;     /* after dropout */
    double ds;
    int64_t k_index;
} reference_pair_t;

static inline reference_query_t reference_query(const flash_params_t *p, const flash_gradients_t *g,
                                                const cpu_task_t *task, int64_t row) {
    const cpu_row_t r = cpu_row(p, task, row);
    const flash_sequence_t *s = &task->sequence;
    const int64_t at = flash_row_index(p, g, s, task->batch_index, r.head, r.query);
    const reference_query_t query = {
        .bias = flash_bias_row(p, s, task->batch_index, r.head, r.query),
        .dropout = flash_dropout_head(&p->dropout, p->n_heads, task->batch_index, r.head),
        .query = r.query,
        .keys = cpu_row_keys(p, task, r),
        .q_index = cpu_row_index(task, &p->q_stride, r),
        .d_o_index = cpu_row_index(task, &g->d_o_stride, r),
        .log_sum = (double)g->row_log_sum[at],
        .d = (double)g->row_d[at]};
    return query;
}

static inline double reference_dot(const void *a, int64_t a_index, int32_t a_dtype, const void *b,
                                   int64_t b_index, int32_t b_dtype, int64_t n) {
    double dot = 0;
    for (int64_t i = 0; i < n; i++)
        dot += (double)element_load(a, a_index + i, a_dtype) *
               (double)element_load(b, b_index + i, b_dtype);
    return dot;
}

/* Returns what dropout multiplies the weight of a key by. */
static inline double reference_pair_factor(const flash_params_t *p, const reference_query_t *query,
                                           int64_t key) {
    return flash_drops(&p->dropout)
               ? (double)flash_dropout_factor(&p->dropout, &query->dropout, query->query, key)
               : 1;
}

/* Returns P and dS of a row and a key in its range. */
static inline reference_pair_t reference_pair(const flash_params_t *p, const flash_gradients_t *g,
                                              const cpu_task_t *task, int32_t dtype,
                                              const reference_query_t *query, int64_t key) {
    const cpu_kv_t k = cpu_kv_k(p), v = cpu_kv_v(p);
    const int64_t k_index = cpu_key_index(p, task, &k, key);
    const int64_t v_index = cpu_key_index(p, task, &v, key);
    const double dot =
        reference_dot(p->q, query->q_index, p->q_dtype, p->k, k_index, dtype, p->d_head);
    const double x = dot * (double)p->softmax_scale, cap = (double)p->softcap;
    const double t = cap != 0 ? tanh(x / cap) : 0;
    const float score = (float)(cap != 0 ? cap * t : x);
    const float biased = cpu_biased_score(&p->bias, &query->bias, score, (int32_t)key);
    const double weight = exp((double)biased - query->log_sum);
    const double dp =
        reference_dot(g->d_o, query->d_o_index, p->o_dtype, p->v, v_index, dtype, p->d_head_v);
    const double factor = reference_pair_factor(p, query, key);
    const double ds = weight * (factor * dp - query->d) * (1 - t * t);
    const reference_pair_t pair = {biased != -INFINITY, factor * weight, ds, k_index};
    return pair;
}

/* Adds weight * row to n sums. */
static inline void reference_add(double *sums, double weight, const void *row, int64_t index,
                                 int32_t dtype, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        sums[i] += weight * (double)element_load(row, index + i, dtype);
}

static inline void reference_store_gradient(const flash_gradient_t *gradient, int64_t index,
                                            const double *sums, double scale, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        gradient_store(gradient, index, i, scale * sums[i]);
}

static inline void reference_backward_dq(const flash_config_t *config, const flash_params_t *p,
                                         const flash_gradients_t *g, const cpu_task_t *task,
                                         void *scratch) {
    double *dq = scratch;
    for (int64_t r = 0; r < task->row_end - task->row_begin; r++) {
        const reference_query_t query = reference_query(p, g, task, r);
        memset(dq, 0, (size_t)p->d_head * sizeof *dq);
        for (int64_t key = query.keys.begin; key < query.keys.end; key++) {
            const reference_pair_t pair = reference_pair(p, g, task, config->dtype, &query, key);
            if (pair.is_seen)
                reference_add(dq, pair.ds, p->k, pair.k_index, config->dtype, p->d_head);
        }
        const int64_t index = cpu_row_index(task, &g->dq.stride, cpu_row(p, task, r));
        reference_store_gradient(&g->dq, index, dq, (double)p->softmax_scale, p->d_head);
    }
}

/* Adds to the gradients of a key what all rows give it. */
static inline void reference_add_rows(const flash_config_t *config, const flash_params_t *p,
                                      const flash_gradients_t *g, const cpu_task_t *task,
                                      int64_t key, double *dk, double *dv) {
    for (int64_t r = 0; r < task->row_end - task->row_begin; r++) {
        const reference_query_t query = reference_query(p, g, task, r);
        if (key < query.keys.begin || key >= query.keys.end)
            continue;
        const reference_pair_t pair = reference_pair(p, g, task, config->dtype, &query, key);
        if (!pair.is_seen)
            continue;
        reference_add(dk, pair.ds, p->q, query.q_index, p->q_dtype, p->d_head);
        reference_add(dv, pair.p, g->d_o, query.d_o_index, p->o_dtype, p->d_head_v);
    }
}

static inline void reference_backward_dkv(const flash_config_t *config, const flash_params_t *p,
                                          const flash_gradients_t *g, const cpu_task_t *task,
                                          void *scratch) {
    double *dk = scratch, *dv = dk + p->d_head;
    for (int64_t key = task->keys.begin; key < task->keys.end; key++) {
        memset(dk, 0, (size_t)((int64_t)p->d_head + p->d_head_v) * sizeof *dk);
        reference_add_rows(config, p, g, task, key, dk, dv);
        if (g->dk.data)
            reference_store_gradient(&g->dk, gradient_key_index(task, &g->dk, key), dk,
                                     (double)p->softmax_scale, p->d_head);
        if (g->dv.data)
            reference_store_gradient(&g->dv, gradient_key_index(task, &g->dv, key), dv, 1,
                                     p->d_head_v);
    }
}

#endif
