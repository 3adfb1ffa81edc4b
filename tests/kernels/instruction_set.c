/*
 * The candidates of one vector family, which are the kernels' own code. The file is compiled once
 * for each family, with its compiler flags (CMakeLists.txt): FAMILY_HEADER is the family's header
 * in kernels/cpu, FAMILY_NAME its name, FAMILY_ISA its FLASH_ISA_..., and FAMILY_SET the name of
 * the table that it defines.
 */
#include FAMILY_HEADER

#include "problem.h"

extern const instruction_set_t FAMILY_SET;

/* The state of a candidate between prepare() and finish(). */
enum { SCRATCH_BYTES = 4 << 20 };
static _Alignas(64) char memory[SCRATCH_BYTES];
static tile_scratch_t scratch;
static bool is_finite_v;

/* ---- Vectors ---- */

static void run_exp2(const problem_t *p, void *const outputs[]) {
    float *to = outputs[0];
    for (int64_t i = 0; i < p->d; i += VEC_WIDTH)
        vec_store(FLASH_DTYPE_FP32, to + i, vec_exp2(vec_load(FLASH_DTYPE_FP32, p->x + i)));
}

static void run_tanh(const problem_t *p, void *const outputs[]) {
    float *to = outputs[0];
    for (int64_t i = 0; i < p->d; i += VEC_WIDTH)
        vec_store(FLASH_DTYPE_FP32, to + i, vec_tanh(vec_load(FLASH_DTYPE_FP32, p->x + i)));
}

static void run_sums(const problem_t *p, void *const outputs[]) {
    float *to = outputs[0];
    vec_t row[4];
    for (int i = 0; i < 4; i++)
        row[i] = vec_load(FLASH_DTYPE_FP32, p->x + i * p->x_stride);
    vec_sum4(row[0], row[1], row[2], row[3], to);
    to[4] = vec_reduce_add(row[0]);
    to[5] = vec_reduce_max(row[0]);
}

static void run_transpose(const problem_t *p, void *const outputs[]) {
    float *to = outputs[0];
    vec_t square[VEC_WIDTH];
    for (int i = 0; i < VEC_WIDTH; i++)
        square[i] = vec_load(FLASH_DTYPE_FP32, p->x + i * p->x_stride);
    vec_transpose(square);
    for (int i = 0; i < VEC_WIDTH; i++)
        vec_store(FLASH_DTYPE_FP32, to + i * VEC_WIDTH, square[i]);
}

/* ---- Conversions; the type is a constant at each call, as it is in kernels ---- */

/* The first n elements of a vector, or all. */
ALWAYS_INLINE void store_columns(int32_t dtype, void *to, vec_t x, int64_t n) {
    if (n >= VEC_WIDTH)
        vec_store(dtype, to, x);
    else
        vec_store_first(dtype, to, x, (int)n);
}

ALWAYS_INLINE void load_as(int32_t dtype, const problem_t *p, float *to) {
    for (int64_t i = 0; i < p->d; i += VEC_WIDTH)
        store_columns(FLASH_DTYPE_FP32, to + i, load_columns(dtype, p->keys, i, p->d), p->d - i);
}

ALWAYS_INLINE void load_pairs_as(int32_t dtype, const problem_t *p, float *to) {
    for (int64_t i = 0; i < p->d; i += 2 * VEC_WIDTH) {
        vec_t pair[2];
        load_pair(dtype, element_at(p->keys, i, dtype), pair);
        sort_pair(dtype, pair);
        vec_store(FLASH_DTYPE_FP32, to + i, pair[0]);
        vec_store(FLASH_DTYPE_FP32, to + i + VEC_WIDTH, pair[1]);
    }
}

ALWAYS_INLINE void store_as(int32_t dtype, const problem_t *p, void *to) {
    for (int64_t i = 0; i < p->d; i += VEC_WIDTH)
        store_columns(dtype, element_at_mutable(to, i, dtype),
                      load_columns(FLASH_DTYPE_FP32, p->x, i, p->d), p->d - i);
}

static void run_load(const problem_t *p, void *const outputs[]) {
    DTYPES_KNOWN(7);
    if (p->dtype == FLASH_DTYPE_FP32)
        load_as(FLASH_DTYPE_FP32, p, outputs[0]);
    else if (p->dtype == FLASH_DTYPE_FP16)
        load_as(FLASH_DTYPE_FP16, p, outputs[0]);
    else if (p->dtype == FLASH_DTYPE_BF16)
        load_as(FLASH_DTYPE_BF16, p, outputs[0]);
    else
        load_as(FLASH_DTYPE_E4M3, p, outputs[0]);
}

static void run_load_pairs(const problem_t *p, void *const outputs[]) {
    DTYPES_KNOWN(7);
    if (p->dtype == FLASH_DTYPE_FP32)
        load_pairs_as(FLASH_DTYPE_FP32, p, outputs[0]);
    else if (p->dtype == FLASH_DTYPE_FP16)
        load_pairs_as(FLASH_DTYPE_FP16, p, outputs[0]);
    else if (p->dtype == FLASH_DTYPE_BF16)
        load_pairs_as(FLASH_DTYPE_BF16, p, outputs[0]);
    else
        load_pairs_as(FLASH_DTYPE_E4M3, p, outputs[0]);
}

static void run_decode(const problem_t *p, void *const outputs[]) {
    if (p->dtype == FLASH_DTYPE_Q8_0)
        decode_quantised(FLASH_DTYPE_Q8_0, p->keys, p->d, outputs[0]);
    else
        decode_quantised(FLASH_DTYPE_Q4_0, p->keys, p->d, outputs[0]);
}

/* Columns as they are packed. */
static void run_load_quantised(const problem_t *p, void *const outputs[]) {
    if (p->dtype == FLASH_DTYPE_Q8_0)
        load_as(FLASH_DTYPE_Q8_0, p, outputs[0]);
    else
        load_as(FLASH_DTYPE_Q4_0, p, outputs[0]);
}

static void run_store(const problem_t *p, void *const outputs[]) {
    DTYPES_KNOWN(7); /* nothing is stored in 8 bits */
    if (p->dtype == FLASH_DTYPE_FP32)
        store_as(FLASH_DTYPE_FP32, p, outputs[0]);
    else if (p->dtype == FLASH_DTYPE_FP16)
        store_as(FLASH_DTYPE_FP16, p, outputs[0]);
    else
        store_as(FLASH_DTYPE_BF16, p, outputs[0]);
}

/* ---- Scratch memory as a kernel has it ---- */

/* The rows of all heads; with a head dimension that is a constant only where kernels have it so. */
static void prepare_scratch(const problem_t *p) {
    scratch = divide_scratch(memory, p->n_heads * p->rows, (int32_t)p->n_keys,
                             (head_dims_t){p->d, p->d}, p->rows, p->n_heads);
    for (int64_t row = 0; p->begin != NULL && row < scratch.n_rows; row++) {
        scratch.begin[row] = p->begin[row];
        scratch.end[row] = p->end[row];
    }
}

/* Rows of Q of the problem's type, in the order that keys in place or packed keys want. */
static void prepare_q(const problem_t *p, bool in_place) {
    char row[4 * 1024];
    const int32_t dtype = p->dtype == FLASH_DTYPE_E4M3 ? FLASH_DTYPE_FP32 : p->dtype;
    for (int64_t r = 0; r < scratch.n_rows; r++) {
        for (int64_t i = 0; i < p->d; i++)
            element_store(row, i, dtype, p->x[r * p->x_stride + i]);
        float *q = scratch.q + r * scratch.d_pad;
        if (in_place && !VEC_DOTS_BF16)
            gather_paired(&scratch, dtype, row, q);
        else
            gather_words(&scratch, dtype, row, q);
    }
}

/* Rows of P in words. */
static void prepare_p(const problem_t *p) {
    for (int64_t r = 0; r < scratch.n_rows; r++)
        for (int64_t i = 0; i < scratch.c_pad; i += VEC_WIDTH)
            words_store((char *)(scratch.s + r * scratch.c_pad) + i * WORD_ELEMENT_SIZE,
                        vec_load(FLASH_DTYPE_FP32, p->x + r * p->x_stride + i));
}

static flash_range_t all_keys(const problem_t *p) {
    const flash_range_t keys = {0, (int32_t)p->n_keys};
    return keys;
}

/* ---- Packed keys ---- */

NEVER_INLINE void pack_k_of(const problem_t *p) {
    const tile_keys_t keys = {p->keys, p->stride};
    DTYPES_KNOWN(7);
    if (p->dtype == FLASH_DTYPE_FP32)
        pack_k(&scratch, FLASH_DTYPE_FP32, &keys, p->n_keys);
    else if (p->dtype == FLASH_DTYPE_FP16)
        pack_k(&scratch, FLASH_DTYPE_FP16, &keys, p->n_keys);
    else if (p->dtype == FLASH_DTYPE_BF16)
        pack_k(&scratch, FLASH_DTYPE_BF16, &keys, p->n_keys);
    else
        pack_k(&scratch, FLASH_DTYPE_E4M3, &keys, p->n_keys);
}

NEVER_INLINE void pack_v_of(const problem_t *p) {
    const tile_keys_t keys = {p->keys, p->stride};
    DTYPES_KNOWN(7);
    if (p->dtype == FLASH_DTYPE_FP32)
        pack_v(&scratch, FLASH_DTYPE_FP32, &keys, p->n_keys);
    else if (p->dtype == FLASH_DTYPE_FP16)
        pack_v(&scratch, FLASH_DTYPE_FP16, &keys, p->n_keys);
    else if (p->dtype == FLASH_DTYPE_BF16)
        pack_v(&scratch, FLASH_DTYPE_BF16, &keys, p->n_keys);
    else
        pack_v(&scratch, FLASH_DTYPE_E4M3, &keys, p->n_keys);
}

static void prepare_pack_k(const problem_t *p, void *const outputs[]) {
    prepare_scratch(p);
    scratch.k = outputs[0];
}

static void run_pack_k(const problem_t *p, void *const outputs[]) {
    (void)outputs;
    pack_k_of(p);
}

static void prepare_pack_v(const problem_t *p, void *const outputs[]) {
    prepare_scratch(p);
    scratch.v = outputs[0];
}

static void run_pack_v(const problem_t *p, void *const outputs[]) {
    float *finite = outputs[1];
    pack_v_of(p);
    *finite = *scratch.v_is_finite != 0;
}

static void prepare_scores_packed(const problem_t *p, void *const outputs[]) {
    prepare_scratch(p);
    prepare_q(p, false);
    pack_k_of(p);
    scratch.s = outputs[0];
}

static void run_scores_packed(const problem_t *p, void *const outputs[]) {
    (void)outputs;
    score_packed(&scratch, all_keys(p));
}

static void prepare_values_packed(const problem_t *p, void *const outputs[]) {
    prepare_scratch(p);
    prepare_p(p);
    pack_v_of(p);
    is_finite_v = *scratch.v_is_finite != 0;
    scratch.o = outputs[0];
}

static void run_values_packed(const problem_t *p, void *const outputs[]) {
    const values_t values = {scratch.v, is_finite_v};
    (void)outputs;
    accumulate(&scratch, &values, all_keys(p));
}

/* ---- Keys in place ---- */

static in_place_t keys_in_place(const problem_t *p) {
    const in_place_t keys = {.data = p->keys,
                             .prefetch = p->keys,
                             .stride = p->stride,
                             .head_bytes = p->d * element_size(p->dtype),
                             .n_heads = (int32_t)p->n_heads,
                             .adjoin = p->stride == p->n_heads * p->d};
    return keys;
}

static void prepare_scores_in_place(const problem_t *p, void *const outputs[]) {
    prepare_scratch(p);
    prepare_q(p, true);
    scratch.s = outputs[0];
}

static void run_scores_in_place(const problem_t *p, void *const outputs[]) {
    const in_place_t keys = keys_in_place(p);
    (void)outputs;
    score_rows(&scratch, p->dtype, &keys, (int32_t)p->n_keys);
}

static void prepare_values_in_place(const problem_t *p, void *const outputs[]) {
    prepare_scratch(p);
    prepare_p(p);
    scratch.o = outputs[0];
}

static void run_values_in_place(const problem_t *p, void *const outputs[]) {
    const in_place_t keys = keys_in_place(p);
    (void)outputs;
    accumulate_in_place(&scratch, p->dtype, &keys, all_keys(p), rows_see(&scratch, all_keys(p)));
}

static void finish_values_in_place(const problem_t *p, void *const outputs[]) {
    (void)outputs;
    sort_columns(&scratch, p->dtype);
}

/* ---- Softmax ---- */

static void prepare_softmax(const problem_t *p, void *const outputs[]) {
    const float *note = outputs[1];
    prepare_scratch(p);
    scratch.s = outputs[0];
    scratch.o = outputs[2];
    for (int64_t row = 0; row < scratch.n_rows; row++) {
        scratch.has_totals[row] = false;
        scratch.reference[row] = note[2 * row];
        for (int i = 0; i < VEC_WIDTH; i++)
            scratch.sum[16 * row + i] = i == 0 ? note[2 * row + 1] : 0;
    }
}

static void run_softmax(const problem_t *p, void *const outputs[]) {
    const flash_params_t params = {.softmax_scale = p->softmax_scale, .softcap = p->softcap};
    (void)outputs;
    softmax(&scratch, &params, NULL, all_keys(p), NULL); /* no bias, for which it reads the task */
}

static void finish_softmax(const problem_t *p, void *const outputs[]) {
    float *note = outputs[1];
    (void)p;
    for (int64_t row = 0; row < scratch.n_rows; row++) {
        note[2 * row] = scratch.reference[row];
        note[2 * row + 1] = vec_reduce_add(vec_load(FLASH_DTYPE_FP32, scratch.sum + 16 * row));
    }
}

static void run_softcap(const problem_t *p, void *const outputs[]) {
    const flash_params_t params = {.softmax_scale = p->softmax_scale, .softcap = p->softcap};
    const softmax_rule_t rule = softmax_rule(&params);
    rewrite_scores(outputs[0], p->d, &rule);
}

/* ---- Sums in parts ---- */

static void prepare_merge_parts(const problem_t *p, void *const outputs[]) {
    prepare_scratch(p);
    scratch.o = outputs[0];
    for (int64_t row = 0; row < scratch.n_rows; row++) {
        scratch.has_totals[row] = true;
        for (int i = 0; i < VEC_WIDTH; i++)
            scratch.sum[16 * row + i] = 0;
        for (int i = 0; i < 16; i++)
            scratch.sum_total[16 * row + i] = 0;
        for (int64_t i = 0; i < scratch.d_pad; i++)
            scratch.o_total[row * scratch.d_pad + i] =
                i < p->d ? (double)p->x[row * p->x_stride + i] : 0;
    }
}

static void run_merge_parts(const problem_t *p, void *const outputs[]) {
    (void)outputs;
    end_parts(&scratch, (int32_t)(p->n_keys / 2));
    add_parts(&scratch);
}

/* ---- The table ---- */

#define RUN_ONLY(name) [CANDIDATE_##name] = {NULL, run_##name, NULL}
#define PREPARED(name) [CANDIDATE_##name] = {prepare_##name, run_##name, NULL}
#define FINISHED(name) [CANDIDATE_##name] = {prepare_##name, run_##name, finish_##name}

const instruction_set_t FAMILY_SET = {
    .name = FAMILY_NAME,
    .isa = FAMILY_ISA,
    .vec_width = VEC_WIDTH,
    .tile_columns = TILE_COLUMNS,
    .word_elements = WORD_ELEMENTS,
    .candidates = {RUN_ONLY(exp2), RUN_ONLY(tanh), RUN_ONLY(sums), RUN_ONLY(transpose),
                   RUN_ONLY(load), RUN_ONLY(store), RUN_ONLY(softcap), RUN_ONLY(decode),
                   RUN_ONLY(load_quantised),
                   [CANDIDATE_load_pairs] = {NULL, VEC_DOTS_BF16 ? NULL : run_load_pairs, NULL},
                   PREPARED(pack_k), PREPARED(pack_v), PREPARED(scores_packed),
                   PREPARED(values_packed), PREPARED(scores_in_place), PREPARED(merge_parts),
                   FINISHED(values_in_place), FINISHED(softmax)}};
