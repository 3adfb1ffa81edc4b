/*
 * The parts that cases are drawn from: sizes, inputs of the problem, outputs.
 */
#ifndef FLASH_TESTS_KERNELS_DRAW_H
#define FLASH_TESTS_KERNELS_DRAW_H

#include "cases.h"

#include <stddef.h>

enum { TIMED_D = 128, TIMED_KEYS = 64, TIMED_ELEMENTS = 1024 };

/* Numbers of low or more, and less than high. */
typedef struct interval {
    float low;
    float high;
} interval_t;

/* Returns zeros, which free() frees; ends the program where there is no memory. */
void *allocate(int64_t count, size_t size);

/* Says yes in one of n cases. */
bool one_in(random_t *r, int64_t n);

/* Adds an output of rows of columns, stride elements apart, which begins as NaN. */
output_t *add_output(test_case_t *c, int32_t dtype, int64_t rows, int64_t columns, int64_t stride);

/* An output that the candidate changes begins with numbers of the interval, and zeros beyond. */
void begin_with(output_t *output, random_t *r, interval_t in);

/* Draws x, [rows][columns], of which a candidate may round nothing in the type. */
void draw_x(test_case_t *c, random_t *r, int32_t dtype, int64_t rows, int64_t columns,
            interval_t in);

/* Draws rows of keys, which may be further apart than they are long; in one of four cases that are
 * not timed some elements are infinite or NaN. */
void draw_keys(test_case_t *c, const drawing_t *how, random_t *r);

/* Draws the keys that rows see: all, or a range that stays or moves by a key from row to row, as
 * with a window; heads are alike. */
void draw_seen(test_case_t *c, const drawing_t *how, random_t *r);

/* Draws the sizes of a block: head dimensions and numbers of keys about vectors' ends. */
void draw_sizes(test_case_t *c, const drawing_t *how, random_t *r, int64_t most_rows);

#endif
