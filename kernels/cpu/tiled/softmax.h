/*
 * Online softmax turns each row of S into P, relative to the row's reference maximum. That is the
 * largest score at an earlier time. It moves only when a score is far above it, so that O is rarely
 * rescaled.
 *
 * P = exp2((s - reference) * to_log2): the difference comes first, so that no score that fp32 holds
 * overflows on its way. A difference that does overflow is one of scores whose ratio is 0 in any
 * case, since to_log2 is an ordinary number (softmax_rule()).
 */
#ifndef FLASH_KERNELS_CPU_TILED_SOFTMAX_H
#define FLASH_KERNELS_CPU_TILED_SOFTMAX_H

#include "cpu/holes.h"
#include "cpu/tiled/bias.h"
#include "cpu/tiled/dropout.h"
#include "cpu/tiled/page_scales.h"
#include "cpu/tiled/scratch.h"
#include "cpu/tiled/words.h"
#include "cpu/vector.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* The most units of log2 by which a score may be above the reference: P stays far from overflow. */
static const float REFERENCE_SLACK = 8;

/* Computes tanh: near 0, where 1 - 2 / (e^2x + 1) cancels, by a polynomial (Cephes tanhf). */
ALWAYS_INLINE vec_t vec_tanh(vec_t x) {
    const vec_t z = vec_mul(x, x);
    vec_t near = vec_set1(-5.70498872745e-3f);
    near = vec_fma(near, z, vec_set1(2.06390887954e-2f));
    near = vec_fma(near, z, vec_set1(-5.37397155531e-2f));
    near = vec_fma(near, z, vec_set1(1.33314422036e-1f));
    near = vec_fma(near, z, vec_set1(-3.33332819422e-1f));
    near = vec_fma(vec_mul(near, z), x, x);
    const vec_t one = vec_set1(1);
    const vec_t e_2x = vec_exp2(vec_mul(x, vec_set1(2 * LOG2_E)));
    const vec_t far = vec_sub(one, vec_div(vec_set1(2), vec_add(e_2x, one)));
    return vec_select_less(vec_abs(x), vec_set1(0.625f), near, far);
}

/* Says whether a factor, and its product with log2(e), is so far from the ends of fp32's range that
 * it turns no difference of scores that matters into 0 or infinity. */
static inline bool is_ordinary(float factor) {
    return factor >= 0x1p-100f && factor <= 0x1p100f;
}

typedef struct softmax_rule {
    float softmax_scale;
    float softcap; /* 0: none */
    bool has_bias; /* scores get a bias (add_bias()) */
    bool drops;    /* weights are dropped (drop_weights()) */
    bool of_pages; /* scores are multiplied by the scales of their keys' pages first */
    bool rewrites; /* scores are scaled and capped in memory first (rewrite_scores()) */
    float to_log2; /* scores are multiplied by this after that, for units of log2 */
    float slack;   /* REFERENCE_SLACK in units of scores */
} softmax_rule_t;

/* Returns the rule of a problem. A softcap below the least normal number, which caps to as good as
 * 0, is replaced by that number. */
static inline softmax_rule_t softmax_rule(const flash_params_t *p) {
    const float softcap = p->softcap != 0 && p->softcap < FLT_MIN ? FLT_MIN : p->softcap;
    const bool has_bias = flash_has_bias(&p->bias);
    const bool of_pages = flash_has_page_scales(&p->k_scale);
    const bool rewrites = of_pages || has_bias || softcap != 0 || !is_ordinary(p->softmax_scale);
    const float to_log2 = (rewrites ? 1 : p->softmax_scale) * LOG2_E;
    const bool drops = flash_drops(&p->dropout);
    const softmax_rule_t rule = {p->softmax_scale, softcap,  has_bias, drops,
                                 of_pages,         rewrites, to_log2,  REFERENCE_SLACK / to_log2};
    return rule;
}

/* Computes s = softcap * tanh(s * factor / softcap) of n scores. */
static inline void cap_scores(float *s, int64_t n, float factor, float softcap) {
    const vec_t inner = vec_set1(factor), outer = vec_set1(softcap);
    for (int64_t i = 0; i < n; i += VEC_WIDTH) {
        const vec_t x = vec_mul(inner, vec_load(FLASH_DTYPE_FP32, s + i));
        vec_store(FLASH_DTYPE_FP32, s + i, vec_mul(outer, vec_tanh(x)));
    }
}

/* Scales n scores, and caps them unless softcap is 0, where one of the numbers is not ordinary.
 * tanh(x) is x where x is small: a score far below the softcap stays as it is there, so that it is
 * not lost among subnormal numbers. */
static inline void rewrite_extreme_scores(float *s, int64_t n, float softmax_scale, float softcap) {
    const vec_t scale = vec_set1(softmax_scale), cap = vec_set1(softcap);
    for (int64_t i = 0; i < n; i += VEC_WIDTH) {
        vec_t score = vec_mul(scale, vec_load(FLASH_DTYPE_FP32, s + i));
        if (softcap != 0) {
            const vec_t x = vec_div(score, cap);
            score =
                vec_select_less(vec_abs(x), vec_set1(0x1p-20f), score, vec_mul(cap, vec_tanh(x)));
        }
        vec_store(FLASH_DTYPE_FP32, s + i, score);
    }
}

/* Scales, and caps, n scores, a multiple of VEC_WIDTH. */
NEVER_INLINE void rewrite_scores(float *s, int64_t n, const softmax_rule_t *rule) {
    const float factor = rule->softmax_scale / rule->softcap;
    if (is_ordinary(rule->softcap) && is_ordinary(factor))
        cap_scores(s, n, factor, rule->softcap);
    else
        rewrite_extreme_scores(s, n, rule->softmax_scale, rule->softcap);
}

/* Hides what whole vectors hold around the row's own scores, begin ... end - 1. */
static inline void hide_rest(float *s, int64_t first, int64_t begin, int64_t end, int64_t last) {
    for (int64_t i = first; i < begin; i++)
        s[i] = -INFINITY;
    for (int64_t i = end; i < last; i++)
        s[i] = -INFINITY;
}

static inline vec_t largest_scores(const float *s, int64_t begin, int64_t end) {
    vec_t largest = vec_load(FLASH_DTYPE_FP32, s + begin);
    for (int64_t i = begin + VEC_WIDTH; i < end; i += VEC_WIDTH)
        largest = vec_max(largest, vec_load(FLASH_DTYPE_FP32, s + i));
    return largest;
}

static inline void scale_sums(float *x, int64_t n, float factor) {
    for (int64_t i = 0; i < n; i += VEC_WIDTH)
        vec_store(FLASH_DTYPE_FP32, x + i,
                  vec_mul(vec_set1(factor), vec_load(FLASH_DTYPE_FP32, x + i)));
}

static inline void scale_totals(double *x, int64_t n, float factor) {
    for (int64_t i = 0; i < n; i++)
        x[i] *= (double)factor;
}

/* Raises the reference maximum of a row, and rescales what was summed so far. */
NEVER_INLINE void raise_reference(const tile_scratch_t *t, int64_t row, float reference,
                                  float to_log2) {
    const float factor = exp2f((t->reference[row] - reference) * to_log2);
    t->reference[row] = reference;
    scale_sums(t->sum + row * 16, VEC_WIDTH, factor);
    scale_sums(t->o + row * t->d_v_pad, t->d_v_pad, factor);
    if (t->has_totals[row]) {
        scale_totals(t->sum_total + row * 16, VEC_WIDTH, factor);
        scale_totals(t->o_total + row * t->d_v_pad, t->d_v_pad, factor);
    }
}

/* Computes P = exp2((s - reference) * to_log2) in words, and adds it to the lanes' sums. */
ALWAYS_INLINE void exponentiate(float *s, int64_t begin, int64_t end, const softmax_rule_t *rule,
                                float reference, float *sums) {
    const vec_t to_log2 = vec_set1(rule->to_log2), references = vec_set1(reference);
    vec_t sum = vec_load(FLASH_DTYPE_FP32, sums);
    for (int64_t i = begin; i < end; i += VEC_WIDTH) {
        const vec_t above = vec_sub(vec_load(FLASH_DTYPE_FP32, s + i), references);
        const vec_t p = vec_exp2(vec_mul(above, to_log2));
        words_store((char *)s + i * WORD_ELEMENT_SIZE, p);
        sum = vec_add(sum, p);
    }
    vec_store(FLASH_DTYPE_FP32, sums, sum);
}

/* Does so, and then drops weights of P, whose sum stays. */
NEVER_INLINE void drop_weights(float *s, int64_t begin, int64_t end, const softmax_rule_t *rule,
                               float reference, float *sums, const dropping_t *dropping) {
    const vec_t to_log2 = vec_set1(rule->to_log2), references = vec_set1(reference);
    const vec_t scales = vec_set1(dropping->dropout->scale);
    vec_t sum = vec_load(FLASH_DTYPE_FP32, sums);
    for (int64_t first = begin; first < end; first += KEPT_KEYS) {
        const int64_t last = min64(first + KEPT_KEYS, end);
        kept_keys_t own;
        const kept_keys_t *kept =
            find_kept(dropping->dropout, &dropping->row, dropping->key + first,
                      dropping->key + last, dropping->rows, &own);
        for (int64_t i = first; i < last; i += VEC_WIDTH) {
            const vec_t above = vec_sub(vec_load(FLASH_DTYPE_FP32, s + i), references);
            const vec_t p = vec_exp2(vec_mul(above, to_log2));
            const vec_t factors = kept_factors(kept, dropping->key + i, scales);
            words_store((char *)s + i * WORD_ELEMENT_SIZE, vec_mul(factors, p));
            sum = vec_add(sum, p);
        }
    }
    vec_store(FLASH_DTYPE_FP32, sums, sum);
}

/* Turns scores first ... last - 1 of a row, whole vectors, into P. dropping: NULL if no weight is
 * dropped. */
ALWAYS_INLINE void scores_to_p(const tile_scratch_t *t, int64_t row, int64_t first, int64_t last,
                               const softmax_rule_t *rule, const dropping_t *dropping) {
    float *s = t->s + row * t->c_pad;
    const vec_t largest = largest_scores(s, first, last);
    if (vec_any_less(vec_set1(t->reference[row] + rule->slack), largest))
        raise_reference(t, row, vec_reduce_max(largest), rule->to_log2);
    const float reference = t->reference[row] == -INFINITY ? 0 : t->reference[row];
    if (dropping)
        drop_weights(s, first, last, rule, reference, t->sum + row * 16, dropping);
    else
        exponentiate(s, first, last, rule, reference, t->sum + row * 16);
}

static inline void clear_p(float *s, int64_t begin, int64_t end) {
    if (begin < end)
        memset((char *)s + begin * WORD_ELEMENT_SIZE, 0,
               (size_t)((end - begin) * WORD_ELEMENT_SIZE));
}

/* These are a block's keys, the task whose heads' rows attend to them, and the rule. */
typedef struct softmax_block {
    const flash_params_t *p;
    const cpu_task_t *task;
    flash_range_t keys;
    softmax_rule_t rule;
    const cpu_holes_t *holes; /* NULL: no key lies in one */
    kept_rows_t *kept;        /* of dropout; NULL: no bits are kept (find_kept()) */
} softmax_block_t;

/* Multiplies columns of a row by the scales of their keys' pages. */
static inline void scale_columns(const tile_scratch_t *t, const softmax_block_t *block, int64_t row,
                                 scaled_pages_t pages, flash_range_t columns) {
    const int32_t first = block->keys.begin;
    const flash_range_t keys = {first + columns.begin, first + columns.end};
    scale_by_pages(t, block->p, block->task, &pages, row, keys,
                   t->s + row * t->c_pad + columns.begin);
}

/* Scales and caps a row's scores, columns first ... last - 1, and adds its bias. */
NEVER_INLINE void rewrite_row(const tile_scratch_t *t, const softmax_block_t *block, int64_t row,
                              int64_t first, int64_t last) {
    float *s = t->s + row * t->c_pad;
    const flash_range_t columns = row_columns(t, block->keys, row);
    if (block->rule.of_pages)
        scale_columns(t, block, row, scaled_pages_k(block->p), columns);
    rewrite_scores(s + first, last - first, &block->rule);
    if (!block->rule.has_bias)
        return;
    const flash_bias_row_t bias = bias_row_of(t, block->p, block->task, row);
    const key_scores_t scores = {s + columns.begin, block->keys.begin + columns.begin,
                                 columns.end - columns.begin};
    add_bias(&block->p->bias, &bias, &scores);
}

/* Hides the block's keys in holes. */
NEVER_INLINE void hide_holes(float *s, const cpu_holes_t *holes, int64_t n_keys) {
    for (int64_t first = 0; first < n_keys; first += 32)
        for (uint32_t left = holes->word[first / 32]; left != 0; left &= left - 1)
            s[first + __builtin_ctz(left)] = -INFINITY;
}

/* Turns a row's scores into P and drops weights. */
NEVER_INLINE void softmax_dropping(const tile_scratch_t *t, const softmax_block_t *block,
                                   int64_t row, int64_t first, int64_t last) {
    const dropping_t dropping = {&block->p->dropout, dropout_row_of(t, block->p, block->task, row),
                                 block->keys.begin, block->kept};
    scores_to_p(t, row, first, last, &block->rule, &dropping);
}

/* Turns a row's scores into P over the columns that it sees, and the others into zeros. */
ALWAYS_INLINE void softmax_row(const tile_scratch_t *t, const softmax_block_t *block, int64_t row,
                               int64_t n_columns) {
    const flash_range_t columns = row_columns(t, block->keys, row);
    const softmax_rule_t *rule = &block->rule;
    float *s = t->s + row * t->c_pad;
    const int64_t first = columns.begin / VEC_WIDTH * VEC_WIDTH;
    const int64_t last = round_up(columns.end, VEC_WIDTH);
    if (columns.begin >= columns.end) {
        clear_p(s, 0, n_columns);
        return;
    }
    if (rule->rewrites)
        rewrite_row(t, block, row, first, last);
    hide_rest(s, first, columns.begin, columns.end, last);
    if (block->holes)
        hide_holes(s, block->holes, block->keys.end - block->keys.begin);
    if (rule->drops)
        softmax_dropping(t, block, row, first, last);
    else
        scores_to_p(t, row, first, last, rule, NULL);
    if (flash_has_page_scales(&block->p->v_scale))
        scale_columns(t, block, row, scaled_pages_v(block->p), columns);
    clear_p(s, 0, first);
    clear_p(s, last, n_columns);
}

ALWAYS_INLINE void softmax(const tile_scratch_t *t, const flash_params_t *p, const cpu_task_t *task,
                           flash_range_t keys, const cpu_holes_t *holes) {
    kept_rows_t kept;
    const softmax_block_t block = {p, task, keys, softmax_rule(p), holes, &kept};
    const int64_t n_columns = round_up(keys.end - keys.begin, WORD_ELEMENTS);
    if (block.rule.drops)
        start_kept_rows(&kept);
    for (int64_t row = 0; row < t->n_rows; row++)
        softmax_row(t, &block, row, n_columns);
}

#endif
