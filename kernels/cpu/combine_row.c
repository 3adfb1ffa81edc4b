/*
 * The merged LSE is log(sum_i exp(lse_i)), the merged O sum_i exp(lse_i - lse) o_i, both in fp32
 * and relative to the largest lse_i, the reference maximum. A sink joins the divisor of O. Columns
 * are merged in chunks, so that the sums fit the stack.
 */
#include "cpu/combine_row.h"
#include "cpu/convert.h"
#include "cpu/sink.h"

#include <math.h>

enum { CHUNK = 64 }; /* columns */

static float load_lse(const combine_partials_t *p, int64_t i) {
    return p->lse_list != NULL ? element_load(p->lse_list[i], p->lse_at, FLASH_DTYPE_FP32)
                               : element_load(p->lse, i * p->lse_stride, FLASH_DTYPE_FP32);
}

static const void *partial_row(const combine_partials_t *p, int64_t i) {
    return p->o_list != NULL ? element_at(p->o_list[i], p->o_at, p->dtype)
                             : element_at(p->o, i * p->o_stride, p->dtype);
}

static float largest_lse(const combine_partials_t *p) {
    float largest = -INFINITY;
    for (int64_t i = 0; i < p->n_partials; i++) {
        const float lse = load_lse(p, i);
        largest = lse > largest ? lse : largest;
    }
    return largest;
}

static float sum_weights(const combine_partials_t *p, float reference) {
    float sum = 0;
    for (int64_t i = 0; i < p->n_partials; i++)
        sum += expf(load_lse(p, i) - reference);
    return sum;
}

/* Computes sum[0 ... n) += weight * row[first ... first + n); dtype is a constant at each call. */
static inline void add_weighted_as(int32_t dtype, const void *row, int64_t first, int64_t n,
                                   float weight, float *sum) {
    for (int64_t j = 0; j < n; j++)
        sum[j] += weight * element_load(row, first + j, dtype);
}

static void add_weighted(int32_t dtype, const void *row, int64_t first, int64_t n, float weight,
                         float *sum) {
    DTYPES_KNOWN(7); /* only K and V are of 8 bits */
    if (dtype == FLASH_DTYPE_FP32)
        add_weighted_as(FLASH_DTYPE_FP32, row, first, n, weight, sum);
    else if (dtype == FLASH_DTYPE_FP16)
        add_weighted_as(FLASH_DTYPE_FP16, row, first, n, weight, sum);
    else
        add_weighted_as(FLASH_DTYPE_BF16, row, first, n, weight, sum);
}

/* Computes columns first ... first + n - 1 of the merged row, times the sum of the weights. */
static void merge_columns(const combine_partials_t *p, int64_t first, int64_t n, float reference,
                          float *sum) {
    for (int64_t j = 0; j < n; j++)
        sum[j] = 0;
    for (int64_t i = 0; i < p->n_partials; i++) {
        const float lse = load_lse(p, i);
        if (lse == -INFINITY)
            continue;
        add_weighted(p->dtype, partial_row(p, i), first, n, expf(lse - reference), sum);
    }
}

float combine_row(const combine_partials_t *partials, float sink, int64_t d_head, void *o,
                  int32_t dtype_o) {
    const float largest = largest_lse(partials);
    const float reference = largest == -INFINITY ? 0 : largest; /* -inf - -inf is NaN */
    const float total = sum_weights(partials, reference);
    const float divisor = sum_with_sink(total, sink, reference);
    for (int64_t first = 0; first < d_head; first += CHUNK) {
        const int64_t n = d_head - first < CHUNK ? d_head - first : CHUNK;
        float sum[CHUNK];
        merge_columns(partials, first, n, reference, sum);
        for (int64_t j = 0; j < n; j++)
            element_store(o, first + j, dtype_o, total != 0 ? sum[j] / divisor : 0);
    }
    return total != 0 ? reference + logf(total) : -INFINITY;
}
