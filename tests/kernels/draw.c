/*
 * See draw.h.
 */
#include "draw.h"

#include "cpu/convert.h"
#include "flashattn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

void *allocate(int64_t count, size_t size) {
    void *memory = calloc((size_t)count + 1, size);
    if (memory == NULL) {
        fprintf(stderr, "no memory for %lld elements\n", (long long)count);
        exit(2);
    }
    return memory;
}

bool one_in(random_t *r, int64_t n) {
    return random_below(r, n) == 0;
}

/* ---- Parts of a case ---- */

output_t *add_output(test_case_t *c, int32_t dtype, int64_t rows, int64_t columns, int64_t stride) {
    output_t *output = &c->outputs[c->n_outputs++];
    const size_t size = (size_t)(rows * stride * element_size(dtype));
    *output = (output_t){.dtype = dtype, .rows = rows, .columns = columns, .stride = stride};
    output->computed = guarded_output(size);
    output->expected = guarded_output(size);
    return output;
}

void begin_with(output_t *output, random_t *r, interval_t in) {
    output->initial = allocate(output->rows * output->stride, sizeof(float));
    for (int64_t row = 0; row < output->rows; row++)
        for (int64_t i = 0; i < output->columns; i++)
            element_store(output->initial, row * output->stride + i, output->dtype,
                          random_in(r, in.low, in.high));
}

static float rounded(int32_t dtype, float x) {
    float element;
    if (dtype == FLASH_DTYPE_E4M3)
        return x;
    element_store(&element, 0, dtype, x);
    return element_load(&element, 0, dtype);
}

void draw_x(test_case_t *c, random_t *r, int32_t dtype, int64_t rows, int64_t columns,
            interval_t in) {
    problem_t *p = &c->problem;
    p->x_stride = next_multiple(columns, 16);
    c->x = allocate(rows * p->x_stride, sizeof *c->x);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < columns; i++)
            c->x[row * p->x_stride + i] = rounded(dtype, random_in(r, in.low, in.high));
    p->x = c->x;
}

/* A number whose magnitude is 1 or less, of e4m3 as vectors load it, 1.75 or less. */
static void draw_element(void *data, int64_t index, int32_t dtype, random_t *r) {
    const uint8_t code = (uint8_t)random_next(r);
    if (dtype == FLASH_DTYPE_E4M3)
        ((uint8_t *)data)[index] = (code & 0x7f) == 0x7f ? 0 : code;
    else
        element_store(data, index, dtype, random_in(r, -1, 1));
}

static void draw_special(void *data, int64_t index, int32_t dtype, random_t *r) {
    static const float specials[] = {NAN, INFINITY, -INFINITY, 0, -0.0f};
    if (dtype == FLASH_DTYPE_E4M3)
        ((uint8_t *)data)[index] = one_in(r, 2) ? 0x7f : 0xff;
    else
        element_store(data, index, dtype, specials[random_below(r, 5)]);
}

void draw_keys(test_case_t *c, const drawing_t *how, random_t *r) {
    problem_t *p = &c->problem;
    const int64_t row = p->n_heads * p->d;
    p->stride = row + (how->timed || one_in(r, 2) ? 0 : random_between(r, 1, 40));
    const int64_t n = (p->n_keys - 1) * p->stride + row;
    c->keys = guarded_input((size_t)(n * element_size(p->dtype)));
    p->keys = c->keys.data;
    for (int64_t i = 0; i < n; i++)
        draw_element(c->keys.data, i, p->dtype, r);
    const int64_t n_special = !how->timed && one_in(r, 4) ? random_between(r, 1, 3) : 0;
    for (int64_t i = 0; i < n_special; i++)
        draw_special(c->keys.data, random_below(r, n), p->dtype, r);
}

void draw_seen(test_case_t *c, const drawing_t *how, random_t *r) {
    problem_t *p = &c->problem;
    const int64_t n = p->n_heads * p->rows, step = random_below(r, 2);
    const bool all = how->timed || one_in(r, 2) || p->set->has_tiles;
    const int64_t begin = all ? 0 : random_between(r, -p->rows, p->n_keys);
    const int64_t end = all ? p->n_keys : random_between(r, begin, p->n_keys);
    c->seen = allocate(2 * n, sizeof *c->seen);
    for (int64_t row = 0; row < n; row++) {
        const int64_t moved = all ? 0 : row % p->rows * step;
        const int64_t first = begin + moved, last = end + moved;
        c->seen[row] = (int32_t)(first < 0 ? 0 : first > p->n_keys ? p->n_keys : first);
        c->seen[n + row] = (int32_t)(last < 0 ? 0 : last > p->n_keys ? p->n_keys : last);
    }
    p->begin = c->seen;
    p->end = c->seen + n;
}

void draw_sizes(test_case_t *c, const drawing_t *how, random_t *r, int64_t most_rows) {
    static const int64_t dims[] = {1, 7, 8, 13, 16, 24, 31, 32, 33, 64, 72, 80, 96, 128, 130, 256};
    problem_t *p = &c->problem;
    p->d = how->timed ? TIMED_D : dims[random_below(r, sizeof dims / sizeof dims[0])];
    p->n_keys = how->timed ? TIMED_KEYS : random_between(r, 1, one_in(r, 4) ? 128 : 40);
    p->rows = how->timed ? how->timed_rows : random_between(r, 1, most_rows);
    p->n_heads = 1;
}
