/*
 * The candidates of AMX that tile registers compute, whole squares of 32 keys that all rows see:
 * scores and values of decoding, and the packing of K and V for prefill. Its vectors are AVX512's.
 */
#include "cpu/amx.h"

#include "problem.h"

extern const instruction_set_t set_amx;

/* The state of a candidate between prepare() and finish(). */
enum { SCRATCH_BYTES = 1 << 20 };
static _Alignas(64) char memory[SCRATCH_BYTES];
static decode_scratch_t scratch;
static decode_pending_t pending;
static amx_scratch_t packing;
static unsigned control;

/* ---- Decoding ---- */

/* Rows of a head are padded to 4, 8 or 16, which the kernels have as a constant R. */
static int padded_rows(const problem_t *p) {
    return p->rows <= 4 ? 4 : p->rows <= 8 ? 8 : 16;
}

static in_place_t square_of_keys(const problem_t *p) {
    const in_place_t keys = {.data = p->keys,
                             .prefetch = p->keys,
                             .stride = p->stride,
                             .n_heads = 1,
                             .adjoin = p->stride == p->d};
    return keys;
}

static bool all_finite(const problem_t *p) {
    for (int64_t key = 0; key < p->n_keys; key++)
        for (int64_t i = 0; i < p->d; i++)
            if (!isfinite(element_load(p->keys, key * p->stride + i, p->dtype)))
                return false;
    return true;
}

static void prepare_decode(const problem_t *p) {
    const int R = padded_rows(p);
    memset(memory, 0, sizeof memory);
    scratch = decode_divide_scratch(memory, (head_dims_t){p->d, p->d}, p->rows, 1, R);
    scratch.apart = !all_finite(p);
    control = decode_configure(R);
}

/* Q is [columns][16][R][2], pairs of columns. */
static void prepare_scores_in_place(const problem_t *p, void *const outputs[]) {
    const int R = padded_rows(p);
    prepare_decode(p);
    (void)outputs;
    for (int64_t row = 0; row < p->rows; row++)
        for (int64_t i = 0; i < p->d; i++)
            scratch.q[(i / 2 * R + row) * 2 + i % 2] = bf16_from_fp32(p->x[row * p->x_stride + i]);
}

static void run_scores_in_place(const problem_t *p, void *const outputs[]) {
    const in_place_t keys = square_of_keys(p);
    (void)outputs;
    tiles_see_stores();
    if (p->rows <= 4)
        decode_score(&scratch, &keys, &keys, scratch.q, 4);
    else if (p->rows <= 8)
        decode_score(&scratch, &keys, &keys, scratch.q, 8);
    else
        decode_score(&scratch, &keys, &keys, scratch.q, 16);
}

/* S is [16][2][R], of keys 0 ... 15 and 16 ... 31. */
static void finish_scores_in_place(const problem_t *p, void *const outputs[]) {
    const int R = padded_rows(p);
    float *s = outputs[0];
    tiles_release(control);
    for (int64_t row = 0; row < p->rows; row++)
        for (int64_t key = 0; key < p->n_keys; key++)
            s[row * padded_keys(p) + key] = scratch.s[(key % 16 * 2 + key / 16) * R + row];
}

/* P is [2][2][R][16][2]: keys 0 ... 15 and 16 ... 31, beside zeros for even and for odd columns. */
static void prepare_values_in_place(const problem_t *p, void *const outputs[]) {
    const int R = padded_rows(p);
    prepare_decode(p);
    (void)outputs;
    for (int64_t row = 0; row < p->rows; row++)
        for (int64_t key = 0; key < p->n_keys; key++)
            for (int odd = 0; odd < 2; odd++)
                scratch.p[((key / 16 * 2 + odd) * R + row) * 32 + key % 16 * 2 + odd] =
                    bf16_from_fp32(p->x[row * p->x_stride + key]);
}

static void run_values_in_place(const problem_t *p, void *const outputs[]) {
    (void)outputs;
    pending = (decode_pending_t){scratch.o, square_of_keys(p)};
    tiles_see_stores();
    if (p->rows <= 4)
        decode_values(&scratch, &pending, NULL, 4);
    else if (p->rows <= 8)
        decode_values(&scratch, &pending, NULL, 8);
    else
        decode_values(&scratch, &pending, NULL, 16);
}

/* O is [columns][2][R][16], even and odd columns. */
static void finish_values_in_place(const problem_t *p, void *const outputs[]) {
    const int R = padded_rows(p);
    float *o = outputs[0];
    tiles_release(control);
    for (int64_t row = 0; row < p->rows; row++)
        for (int64_t i = 0; i < p->d; i++)
            o[row * padded_d(p) + i] =
                scratch.o[((i / 32 * 2 + i % 2) * R + row) * 16 + i % 32 / 2];
}

/* ---- Packing ---- */

static amx_block_t block_of(void *const outputs[]) {
    const amx_block_t block = {outputs[0], outputs[1], (uint32_t *)(void *)memory};
    return block;
}

static void prepare_pack_squares(const problem_t *p, void *const outputs[]) {
    const flash_config_t config = {
        .dtype = p->dtype, .B_r = AMX_SQUARE, .B_c = (int32_t)next_multiple(p->n_keys, AMX_SQUARE)};
    const int32_t terms = amx_terms_of(p->dtype);
    (void)outputs;
    packing = amx_divide_scratch(memory + 64, &config, (head_dims_t){p->d, p->d},
                                 (amx_terms_t){terms, terms}, AMX_SQUARE);
}

static void run_pack_squares(const problem_t *p, void *const outputs[]) {
    const flash_strides_t stride = {.seq = p->stride};
    const flash_params_t params = {
        .k = p->keys, .v = p->keys, .k_stride = stride, .v_stride = stride};
    const cpu_task_t task = {.sequence = {.len_k = (int32_t)p->n_keys}, .n_heads = 1};
    const flash_range_t keys = {0, (int32_t)p->n_keys};
    const amx_block_t block = block_of(outputs);
    if (p->dtype == FLASH_DTYPE_BF16)
        pack_block(&packing, &params, &task, FLASH_DTYPE_BF16, keys, &block);
    else
        pack_block(&packing, &params, &task, FLASH_DTYPE_FP16, keys, &block);
}

static void finish_pack_squares(const problem_t *p, void *const outputs[]) {
    const uint32_t *bad = block_of(outputs).bad;
    float *is_bad = outputs[2];
    for (int64_t key = 0; key < p->n_keys; key++)
        is_bad[key] = (float)(bad[key / AMX_SQUARE] >> key % AMX_SQUARE & 1);
}

/* ---- The table ---- */

const instruction_set_t set_amx = {
    .name = "amx",
    .isa = FLASH_ISA_AMX,
    .vec_width = VEC_WIDTH,
    .tile_columns = TILE_COLUMNS,
    .word_elements = 2,
    .has_tiles = true,
    .candidates = {
        [CANDIDATE_scores_in_place] = {prepare_scores_in_place, run_scores_in_place,
                                       finish_scores_in_place},
        [CANDIDATE_values_in_place] = {prepare_values_in_place, run_values_in_place,
                                       finish_values_in_place},
        [CANDIDATE_pack_squares] = {prepare_pack_squares, run_pack_squares, finish_pack_squares}}};
