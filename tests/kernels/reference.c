/*
 * See reference.h.
 */
#include "reference.h"

#include "cpu/convert.h"
#include "flashattn.h"

#include <math.h>

/* Returns an element as vectors load it: of e4m3 a number 2^8 times too small (tiled/e4m3.h). */
static float load_element(const problem_t *p, int64_t index) {
    const float unit = p->dtype == FLASH_DTYPE_E4M3 ? 0x1p-8f : 1;
    return element_load(p->keys, index, p->dtype) * unit;
}

static float key_element(const problem_t *p, int64_t head, int64_t key, int64_t column) {
    return load_element(p, key * p->stride + head * p->d + column);
}

static bool sees(const problem_t *p, int64_t row, int64_t key) {
    return p->begin[row] <= key && key < p->end[row];
}

/* ---- Vectors ---- */

static double exp2_or_zero(double x) {
    return x < -125 ? 0 : exp2(x);
}

static void reference_exp2(const problem_t *p, void *const outputs[]) {
    float *to = outputs[0];
    for (int64_t i = 0; i < p->d; i++)
        to[i] = (float)exp2_or_zero((double)p->x[i]);
}

static void reference_tanh(const problem_t *p, void *const outputs[]) {
    float *to = outputs[0];
    for (int64_t i = 0; i < p->d; i++)
        to[i] = (float)tanh((double)p->x[i]);
}

static void reference_sums(const problem_t *p, void *const outputs[]) {
    float *to = outputs[0];
    to[5] = -INFINITY;
    for (int row = 0; row < 4; row++) {
        double sum = 0;
        for (int64_t i = 0; i < p->d; i++)
            sum += (double)p->x[row * p->x_stride + i];
        to[row] = (float)sum;
    }
    to[4] = to[0];
    for (int64_t i = 0; i < p->d; i++)
        to[5] = fmaxf(to[5], p->x[i]);
}

static void reference_transpose(const problem_t *p, void *const outputs[]) {
    float *to = outputs[0];
    for (int64_t row = 0; row < p->d; row++)
        for (int64_t i = 0; i < p->d; i++)
            to[i * p->d + row] = p->x[row * p->x_stride + i];
}

/* ---- Conversions ---- */

static void reference_load(const problem_t *p, void *const outputs[]) {
    float *to = outputs[0];
    for (int64_t i = 0; i < p->d; i++)
        to[i] = load_element(p, i);
}

static void reference_load_pairs(const problem_t *p, void *const outputs[]) {
    reference_load(p, outputs);
}

static void reference_decode(const problem_t *p, void *const outputs[]) {
    float *to = outputs[0];
    for (int64_t i = 0; i < p->d; i++)
        to[i] = key_load(p->keys, 0, i, p->dtype);
}

static void reference_load_quantised(const problem_t *p, void *const outputs[]) {
    reference_decode(p, outputs);
}

static void reference_store(const problem_t *p, void *const outputs[]) {
    for (int64_t i = 0; i < p->d; i++)
        element_store(outputs[0], i, p->dtype, p->x[i]);
}

/* ---- Packed keys ---- */

/* Stores element number `element` of a word of a packed matrix: fp32, or one of two bf16. */
static void store_word(const problem_t *p, void *words, int64_t word, int64_t element, float x) {
    if (p->set->word_elements == 2)
        element_store(words, 2 * word + element, FLASH_DTYPE_BF16, x);
    else
        element_store(words, word, FLASH_DTYPE_FP32, x);
}

/* Returns where a word of a packed matrix of [depth][columns] words lies (tiled/pack.h). */
static int64_t packed_at(const problem_t *p, int64_t depth, int64_t columns, int64_t row,
                         int64_t column) {
    const int64_t first = column / p->set->tile_columns * p->set->tile_columns;
    const int64_t left = columns - first;
    const int64_t width = left < p->set->tile_columns ? left : p->set->tile_columns;
    return first * depth + row * width + column - first;
}

static void reference_pack_k(const problem_t *p, void *const outputs[]) {
    const int64_t elements = p->set->word_elements, depth = (p->d + elements - 1) / elements;
    for (int64_t key = 0; key < next_multiple(p->n_keys, p->set->vec_width); key++)
        for (int64_t i = 0; i < depth * elements; i++) {
            const float x = key < p->n_keys && i < p->d ? key_element(p, 0, key, i) : 0;
            store_word(p, outputs[0], packed_at(p, depth, padded_keys(p), i / elements, key),
                       i % elements, x);
        }
}

static void reference_pack_v(const problem_t *p, void *const outputs[]) {
    const int64_t elements = p->set->word_elements, depth = padded_keys(p) / elements;
    float *finite = outputs[1];
    *finite = 1;
    for (int64_t key = 0; key < next_multiple(p->n_keys, elements); key++)
        for (int64_t i = 0; i < padded_d(p); i++) {
            const float x = key < p->n_keys && i < p->d ? key_element(p, 0, key, i) : 0;
            *finite = isfinite(x) ? *finite : 0;
            store_word(p, outputs[0], packed_at(p, depth, padded_d(p), key / elements, i),
                       key % elements, x);
        }
}

/* Stores an element of a square of an operand as its terms, each what those before it leave; what
 * is infinite or NaN is 0. Returns whether it is. (amx/layout.h) */
static bool store_terms(const problem_t *p, void *squares, int64_t square, int64_t at, float x) {
    const int64_t terms = p->dtype == FLASH_DTYPE_FP16 ? 2 : 1;
    float left = isfinite(x) ? x : 0;
    for (int64_t term = 0; term < terms; term++) {
        const int64_t index = (square * terms + term) * 32 * 32 + at;
        element_store(squares, index, FLASH_DTYPE_BF16, left);
        left -= element_load(squares, index, FLASH_DTYPE_BF16);
    }
    return !isfinite(x);
}

static void reference_pack_squares(const problem_t *p, void *const outputs[]) {
    const int64_t columns = next_multiple(p->d, 32) / 32, keys = next_multiple(p->n_keys, 32) / 32;
    float *is_bad = outputs[2];
    for (int64_t key = 0; key < p->n_keys; key++)
        is_bad[key] = 0;
    for (int64_t key = 0; key < 32 * keys; key++)
        for (int64_t i = 0; i < 32 * columns; i++) {
            const float x = key < p->n_keys && i < p->d ? key_element(p, 0, key, i) : 0;
            const int64_t k = key / 32 * columns + i / 32, v = i / 32 * keys + key / 32;
            store_terms(p, outputs[1], v, i % 32 * 32 + key % 32, x);
            if (store_terms(p, outputs[0], k, key % 32 * 32 + i % 32, x))
                is_bad[key] = 1;
        }
}

/* ---- Products ---- */

static double dot_product(const problem_t *p, int64_t head, int64_t row, int64_t key) {
    double sum = 0;
    for (int64_t i = 0; i < p->d; i++)
        sum += (double)p->x[row * p->x_stride + i] * (double)key_element(p, head, key, i);
    return sum;
}

static void reference_scores_in_place(const problem_t *p, void *const outputs[]) {
    float *s = outputs[0];
    for (int64_t row = 0; row < p->n_heads * p->rows; row++)
        for (int64_t key = 0; key < p->n_keys; key++)
            s[row * padded_keys(p) + key] = (float)dot_product(p, row / p->rows, row, key);
}

static void reference_scores_packed(const problem_t *p, void *const outputs[]) {
    reference_scores_in_place(p, outputs);
}

static void reference_values_in_place(const problem_t *p, void *const outputs[]) {
    float *o = outputs[0];
    for (int64_t row = 0; row < p->n_heads * p->rows; row++)
        for (int64_t i = 0; i < p->d; i++) {
            double sum = (double)o[row * padded_d(p) + i];
            for (int64_t key = 0; key < p->n_keys; key++)
                if (sees(p, row, key))
                    sum += (double)p->x[row * p->x_stride + key] *
                           (double)key_element(p, row / p->rows, key, i);
            o[row * padded_d(p) + i] = (float)sum;
        }
}

static void reference_values_packed(const problem_t *p, void *const outputs[]) {
    reference_values_in_place(p, outputs);
}

/* ---- Softmax ---- */

/* Returns a score after scaling, and capping; `units` gets what a unit of it is in log2. */
static double scaled_score(const problem_t *p, float score, double *units) {
    const double log2_e = 1.4426950408889634;
    *units = p->softcap != 0 ? log2_e : (double)p->softmax_scale * log2_e;
    if (p->softcap == 0)
        return (double)score;
    return (double)p->softcap * tanh((double)score * (double)p->softmax_scale / (double)p->softcap);
}

/* A row's scores become P, relative to its reference, which rises to the largest score where that
 * is more than 8 units of log2 above it (tiled/softmax.h). */
static void softmax_row_of(const problem_t *p, int64_t row, float *s, float note[2], float *o) {
    const int64_t n_columns = next_multiple(p->n_keys, p->set->word_elements);
    double units = 1, largest = -INFINITY, sum = (double)note[1];
    for (int64_t key = p->begin[row]; key < p->end[row]; key++)
        largest = fmax(largest, scaled_score(p, s[key], &units));
    if (largest > (double)note[0] + 8 / units) {
        const double factor = exp2(((double)note[0] - largest) * units);
        note[0] = (float)largest;
        sum *= factor;
        for (int64_t i = 0; i < p->d; i++)
            o[i] = (float)((double)o[i] * factor);
    }
    const double reference = isinf(note[0]) ? 0 : (double)note[0];
    float weights[512];
    for (int64_t key = 0; key < n_columns; key++) {
        const bool seen = sees(p, row, key);
        const double score = seen ? scaled_score(p, s[key], &units) : 0;
        weights[key] = seen ? (float)exp2_or_zero((score - reference) * units) : 0;
        sum += (double)weights[key];
    }
    for (int64_t key = 0; key < n_columns; key++)
        element_store(s, key, p->set->word_elements == 2 ? FLASH_DTYPE_BF16 : FLASH_DTYPE_FP32,
                      weights[key]);
    note[1] = (float)sum;
}

static void reference_softmax(const problem_t *p, void *const outputs[]) {
    float *s = outputs[0], *notes = outputs[1], *o = outputs[2];
    for (int64_t row = 0; row < p->rows; row++)
        softmax_row_of(p, row, s + row * padded_keys(p), notes + 2 * row, o + row * padded_d(p));
}

static void reference_softcap(const problem_t *p, void *const outputs[]) {
    float *s = outputs[0];
    for (int64_t i = 0; i < p->d; i++) {
        double units;
        s[i] = (float)(p->softcap != 0 ? scaled_score(p, s[i], &units)
                                       : (double)s[i] * (double)p->softmax_scale);
    }
}

/* ---- Merging ---- */

static void reference_merge_parts(const problem_t *p, void *const outputs[]) {
    float *o = outputs[0];
    for (int64_t row = 0; row < p->rows; row++)
        for (int64_t i = 0; i < p->d; i++)
            o[row * padded_d(p) + i] =
                (float)((double)p->x[row * p->x_stride + i] + (double)o[row * padded_d(p) + i]);
}

static void reference_merge_partials(const problem_t *p, void *const outputs[]) {
    float *o = outputs[0], *lse = outputs[1];
    double largest = -INFINITY, total = 0;
    for (int64_t i = 0; i < p->n_keys; i++)
        largest = fmax(largest, (double)p->x[i]);
    for (int64_t i = 0; i < p->n_keys && largest > -INFINITY; i++)
        total += exp((double)p->x[i] - largest);
    *lse = (float)(total != 0 ? largest + log(total) : -INFINITY);
    const double divisor = total + (total != 0 ? exp((double)p->sink - largest) : 0);
    for (int64_t column = 0; column < p->d; column++) {
        double sum = 0;
        for (int64_t i = 0; i < p->n_keys && total != 0; i++)
            if (p->x[i] > -INFINITY)
                sum += exp((double)p->x[i] - largest) * (double)key_element(p, 0, i, column);
        o[column] = (float)(total != 0 ? sum / divisor : 0);
    }
}

/* ---- The table ---- */

routine_t reference_of(candidate_t candidate) {
#define REFERENCE(name) reference_##name,
    static const routine_t references[N_CANDIDATES] = {CANDIDATES(REFERENCE)};
#undef REFERENCE
    return references[candidate];
}
