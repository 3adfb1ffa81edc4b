/*
 * See cases.h. Each draw_...() says what its candidate reads and writes.
 */
#include "draw.h"

#include "cpu/convert.h"
#include "flashattn.h"

#include <math.h>
#include <stdlib.h>

/* ---- Vectors ---- */

/* Draws d numbers, whole vectors, as a row of x, and a row of d results. */
static void draw_map(test_case_t *c, const drawing_t *how, random_t *r, interval_t in) {
    problem_t *p = &c->problem;
    p->d = how->timed ? TIMED_ELEMENTS : 16 * random_between(r, 1, 16);
    draw_x(c, r, FLASH_DTYPE_FP32, 1, p->d, in);
    output_t *output = add_output(c, FLASH_DTYPE_FP32, 1, p->d, p->d);
    output->relative = 4e-7f;
    output->absolute = 1e-37f;
}

/* 2^x, 0 below x = -125, NaN for NaN. */
static void draw_exp2(test_case_t *c, const drawing_t *how, random_t *r) {
    static const float edges[] = {NAN, -INFINITY, 0, -0.0f, -125, -125.0001f, 127, -1e30f};
    draw_map(c, how, r, (interval_t){-130, 127});
    for (int i = 0; !how->timed && i < 8; i++)
        c->x[i] = edges[i];
}

static void draw_tanh(test_case_t *c, const drawing_t *how, random_t *r) {
    static const float edges[] = {NAN, -INFINITY, INFINITY, 0, 0.625f, -0.6249f, 1e-20f, 30};
    draw_map(c, how, r, (interval_t){-10, 10});
    c->outputs[0].absolute = 2e-7f;
    for (int i = 0; !how->timed && i < 8; i++)
        c->x[i] = edges[i];
}

/* The sums of four vectors, and the sum and the largest element of the first one. */
static void draw_sums(test_case_t *c, const drawing_t *how, random_t *r) {
    c->problem.d = how->set->vec_width;
    draw_x(c, r, FLASH_DTYPE_FP32, 4, c->problem.d, (interval_t){-1, 1});
    add_output(c, FLASH_DTYPE_FP32, 1, 6, 6)->absolute = 4e-6f;
}

static void draw_transpose(test_case_t *c, const drawing_t *how, random_t *r) {
    const int64_t width = how->set->vec_width;
    c->problem.d = width;
    draw_x(c, r, FLASH_DTYPE_FP32, width, width, (interval_t){-1, 1});
    add_output(c, FLASH_DTYPE_FP32, width, width, width);
}

/* ---- Conversions ---- */

/* d columns of a row of any bits, to fp32. */
static void draw_load_of(test_case_t *c, const drawing_t *how, random_t *r, int64_t d) {
    problem_t *p = &c->problem;
    const int64_t bytes = key_bytes(how->dtype, d);
    p->d = d;
    c->keys = guarded_input((size_t)bytes);
    p->keys = c->keys.data;
    for (int64_t i = 0; i < bytes; i++)
        ((unsigned char *)c->keys.data)[i] = (unsigned char)random_next(r);
    add_output(c, FLASH_DTYPE_FP32, 1, d, d);
}

static void draw_load(test_case_t *c, const drawing_t *how, random_t *r) {
    draw_load_of(c, how, r, how->timed ? TIMED_ELEMENTS : random_between(r, 1, 100));
}

static void draw_load_pairs(test_case_t *c, const drawing_t *how, random_t *r) {
    draw_load_of(c, how, r, how->timed ? TIMED_ELEMENTS : 32 * random_between(r, 1, 4));
}

/* A row of quantised blocks, whose scales are of any bits, too. */
static void draw_decode(test_case_t *c, const drawing_t *how, random_t *r) {
    draw_load_of(c, how, r,
                 how->timed ? TIMED_ELEMENTS : FLASH_QUANT_BLOCK * random_between(r, 1, 18));
}

static void draw_load_quantised(test_case_t *c, const drawing_t *how, random_t *r) {
    draw_decode(c, how, r);
}

/* d numbers of fp32, of any bits or about 1, to the type. */
static void draw_store(test_case_t *c, const drawing_t *how, random_t *r) {
    problem_t *p = &c->problem;
    p->d = how->timed ? TIMED_ELEMENTS : random_between(r, 1, 100);
    draw_x(c, r, FLASH_DTYPE_FP32, 1, p->d, (interval_t){-2, 2});
    for (int64_t i = 0; i < p->d && !how->timed; i++)
        c->x[i] = one_in(r, 2) ? random_bits(r) : c->x[i];
    add_output(c, p->dtype, 1, p->d, p->d);
}

/* ---- Packed keys ---- */

/* Draws a packed matrix. */
static void draw_packed(test_case_t *c, int64_t elements, int64_t columns) {
    const int64_t pair = c->problem.set->word_elements;
    const int32_t dtype = pair == 2 ? FLASH_DTYPE_BF16 : FLASH_DTYPE_FP32;
    const int64_t n = next_multiple(elements, pair) * columns;
    add_output(c, dtype, 1, n, n);
}

/* K transposed, [d][padded_keys()]. Beyond the last vector of keys nothing is written. */
static void draw_pack_k(test_case_t *c, const drawing_t *how, random_t *r) {
    draw_sizes(c, how, r, 1);
    draw_keys(c, how, r);
    draw_packed(c, c->problem.d, padded_keys(&c->problem));
}

/* V, [padded_keys()][padded_d()]; and 1 where all of it is finite, else 0. */
static void draw_pack_v(test_case_t *c, const drawing_t *how, random_t *r) {
    draw_sizes(c, how, r, 1);
    draw_keys(c, how, r);
    draw_packed(c, padded_keys(&c->problem), padded_d(&c->problem));
    add_output(c, FLASH_DTYPE_FP32, 1, 1, 1);
}

/* K, and V transposed, in squares of bf16 terms, and 1 for each key that is not finite. K and V are
 * the same numbers. */
static void draw_pack_squares(test_case_t *c, const drawing_t *how, random_t *r) {
    problem_t *p = &c->problem;
    draw_sizes(c, how, r, 1);
    draw_keys(c, how, r);
    const int64_t terms = p->dtype == FLASH_DTYPE_FP16 ? 2 : 1;
    const int64_t n = next_multiple(p->n_keys, 32) * next_multiple(p->d, 32) * terms;
    add_output(c, FLASH_DTYPE_BF16, 1, n, n);
    add_output(c, FLASH_DTYPE_BF16, 1, n, n);
    add_output(c, FLASH_DTYPE_FP32, 1, p->n_keys, p->n_keys);
}

/* ---- Products ---- */

/* S [rows][padded_keys()] of all keys, with rows of Q in x. */
static void draw_scores(test_case_t *c, const drawing_t *how, random_t *r) {
    problem_t *p = &c->problem;
    draw_seen(c, &(drawing_t){.timed = true}, r);
    draw_keys(c, how, r);
    draw_x(c, r, p->dtype, p->n_heads * p->rows, p->d, (interval_t){-1, 1});
    output_t *s = add_output(c, FLASH_DTYPE_FP32, p->n_heads * p->rows, p->n_keys, padded_keys(p));
    s->absolute = 4e-7f * (float)(p->d + 8);
    s->relative = 1e-6f;
}

static void draw_scores_packed(test_case_t *c, const drawing_t *how, random_t *r) {
    draw_sizes(c, how, r, 24);
    draw_scores(c, how, r);
}

/* Sizes of keys in place: those of any block, or of a square that tiles hold. */
static void draw_sizes_in_place(test_case_t *c, const drawing_t *how, random_t *r) {
    problem_t *p = &c->problem;
    draw_sizes(c, how, r, p->set->has_tiles ? 16 : 13);
    if (p->set->has_tiles) {
        p->n_keys = 32;
        p->d = how->timed ? p->d : 32 * random_between(r, 1, 8);
    } else {
        p->n_heads = how->timed ? 1 : random_between(r, 1, HEADS_MAX);
    }
}

static void draw_scores_in_place(test_case_t *c, const drawing_t *how, random_t *r) {
    draw_sizes_in_place(c, how, r);
    draw_scores(c, how, r);
}

/* O [rows][padded_d()] += P V over the keys that each row sees, with rows of P in x; V may be
 * infinite or NaN where a row sees nothing. */
static void draw_values(test_case_t *c, const drawing_t *how, random_t *r, float low) {
    problem_t *p = &c->problem;
    const int32_t words = p->set->word_elements == 2 ? FLASH_DTYPE_BF16 : FLASH_DTYPE_FP32;
    const int64_t n = p->n_heads * p->rows;
    draw_seen(c, how, r);
    draw_keys(c, how, r);
    draw_x(c, r, words, n, p->n_keys, (interval_t){0, 1});
    for (int64_t row = 0; row < n; row++)
        for (int64_t key = 0; key < p->n_keys; key++)
            if (key < p->begin[row] || key >= p->end[row])
                c->x[row * p->x_stride + key] = 0;
    output_t *o = add_output(c, FLASH_DTYPE_FP32, n, p->d, padded_d(p));
    begin_with(o, r, (interval_t){low, -low});
    o->absolute = 4e-7f * (float)(p->n_keys + 8);
    o->relative = 1e-6f;
}

static void draw_values_packed(test_case_t *c, const drawing_t *how, random_t *r) {
    draw_sizes(c, how, r, 24);
    draw_values(c, how, r, -1);
}

/* O begins with zeros, since its columns are in an order of the instruction set's own. */
static void draw_values_in_place(test_case_t *c, const drawing_t *how, random_t *r) {
    draw_sizes_in_place(c, how, r);
    draw_values(c, how, r, 0);
}

/* ---- Softmax ---- */

/* Rows of scores, which become P in words; reference and sum of each row; and O, which is rescaled
 * where the reference rises. */
static void draw_softmax(test_case_t *c, const drawing_t *how, random_t *r) {
    problem_t *p = &c->problem;
    const bool is_first = one_in(r, 2);
    draw_sizes(c, how, r, 8);
    draw_seen(c, how, r);
    p->softmax_scale = random_in(r, 0.05f, 1);
    p->softcap = !how->timed && one_in(r, 3) ? random_in(r, 1, 30) : 0;
    const int64_t pair = p->set->word_elements, n = next_multiple(p->n_keys, pair);
    output_t *s = add_output(c, pair == 2 ? FLASH_DTYPE_BF16 : FLASH_DTYPE_FP32, p->rows, n,
                             pair * padded_keys(p));
    float *scores = allocate(p->rows * padded_keys(p), sizeof *scores);
    for (int64_t i = 0; i < p->rows * padded_keys(p); i++)
        scores[i] = random_in(r, -30, 30);
    s->initial = scores;
    s->relative = pair == 2 ? 0x1p-7f : 1e-4f;
    output_t *notes = add_output(c, FLASH_DTYPE_FP32, p->rows, 2, 2);
    begin_with(notes, r, (interval_t){0, 25});
    for (int64_t row = 0; row < p->rows && is_first; row++) {
        ((float *)notes->initial)[2 * row] = -INFINITY;
        ((float *)notes->initial)[2 * row + 1] = 0;
    }
    notes->relative = 1e-4f;
    output_t *o = add_output(c, FLASH_DTYPE_FP32, p->rows, p->d, padded_d(p));
    begin_with(o, r, is_first ? (interval_t){0, 0} : (interval_t){-1, 1});
    o->relative = 1e-4f;
}

/* A row of d scores, scaled and capped in place; without a softcap, scaled alone. Where it is
 * timed, the scale keeps scores that are capped again and again away from subnormal numbers. */
static void draw_softcap(test_case_t *c, const drawing_t *how, random_t *r) {
    problem_t *p = &c->problem;
    const int64_t n = how->timed ? TIMED_ELEMENTS : 16 * random_between(r, 1, 8);
    p->d = n;
    p->softcap = how->timed || !one_in(r, 4) ? random_in(r, 1, 50) : 0;
    p->softmax_scale = how->timed ? 1 : one_in(r, 8) ? 0x1p-110f : random_in(r, 0.05f, 1);
    output_t *s = add_output(c, FLASH_DTYPE_FP32, 1, n, n);
    begin_with(s, r, (interval_t){-200, 200});
    s->relative = 1e-5f;
    s->absolute = p->softmax_scale < 1e-9f ? 0 : 1e-5f;
}

/* ---- Merging ---- */

/* O of each row, with totals in x: a part ends, and O becomes that of all parts. */
static void draw_merge_parts(test_case_t *c, const drawing_t *how, random_t *r) {
    problem_t *p = &c->problem;
    draw_sizes(c, how, r, 8);
    p->n_keys = 2;
    draw_seen(c, &(drawing_t){.timed = true}, r);
    draw_x(c, r, FLASH_DTYPE_FP32, p->rows, p->d, (interval_t){-1, 1});
    begin_with(add_output(c, FLASH_DTYPE_FP32, p->rows, p->d, padded_d(p)), r, (interval_t){-1, 1});
}

/* O of a row and its LSE, from n_keys partial results of d elements, whose LSEs are in x, and maybe
 * a sink. A partial result that saw no key may be NaN. */
static void draw_merge_partials(test_case_t *c, const drawing_t *how, random_t *r) {
    problem_t *p = &c->problem;
    draw_sizes(c, how, r, 1);
    p->n_keys = how->timed ? 8 : random_between(r, 1, 9);
    draw_keys(c, &(drawing_t){.timed = true}, r);
    draw_x(c, r, FLASH_DTYPE_FP32, 1, p->n_keys, (interval_t){-20, 20});
    p->sink = one_in(r, 2) ? -INFINITY : random_in(r, -20, 20);
    for (int64_t i = 0; i < p->n_keys && !how->timed; i++) {
        if (!one_in(r, 4))
            continue;
        c->x[i] = -INFINITY;
        element_store(c->keys.data, i * p->stride, p->dtype, NAN);
    }
    add_output(c, FLASH_DTYPE_FP32, 1, p->d, p->d)->absolute = 2e-6f;
    add_output(c, FLASH_DTYPE_FP32, 1, 1, 1)->absolute = 1e-5f;
}

/* ---- Cases ---- */

bool case_has_dtype(const instruction_set_t *set, candidate_t candidate, int32_t dtype) {
    if (dtype == FLASH_DTYPE_LATENT_E4M3) /* its tokens have 576 columns, no fewer */
        return false;
    if (has_quant_blocks(dtype)) /* a row is whole blocks, not elements */
        return candidate == CANDIDATE_decode || candidate == CANDIDATE_load_quantised;
    switch (candidate) {
    case CANDIDATE_decode:
    case CANDIDATE_load_quantised:
        return false;
    case CANDIDATE_load:
    case CANDIDATE_load_pairs:
        return true;
    case CANDIDATE_store:
    case CANDIDATE_merge_partials:
        return dtype != FLASH_DTYPE_E4M3;
    case CANDIDATE_pack_squares:
        return dtype == FLASH_DTYPE_BF16 || dtype == FLASH_DTYPE_FP16;
    case CANDIDATE_pack_k:
    case CANDIDATE_pack_v:
    case CANDIDATE_scores_packed:
    case CANDIDATE_values_packed:
    case CANDIDATE_scores_in_place:
    case CANDIDATE_values_in_place:
        return set->word_elements == 1 || dtype == FLASH_DTYPE_BF16;
    default:
        return dtype == FLASH_DTYPE_FP32;
    }
}

test_case_t case_draw(const drawing_t *drawing, random_t *random) {
#define DRAW(name) draw_##name,
    static void (*const draws[N_CANDIDATES])(test_case_t *, const drawing_t *,
                                             random_t *) = {CANDIDATES(DRAW)};
#undef DRAW
    test_case_t c = {.problem = {.set = drawing->set,
                                 .dtype = drawing->dtype,
                                 .rows = 1,
                                 .n_heads = 1,
                                 .n_keys = 1,
                                 .d = 1}};
    draws[drawing->candidate](&c, drawing, random);
    return c;
}

void case_free(test_case_t *c) {
    for (int i = 0; i < c->n_outputs; i++) {
        guarded_free_output(&c->outputs[i].computed);
        guarded_free_output(&c->outputs[i].expected);
        free(c->outputs[i].initial);
    }
    if (c->keys.memory != NULL)
        guarded_free_input(&c->keys);
    free(c->x);
    free(c->seen);
}
