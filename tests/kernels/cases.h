/*
 * Drawing problems for candidates: random sizes and numbers, edges among them, or the sizes that
 * are timed.
 */
#ifndef FLASH_TESTS_KERNELS_CASES_H
#define FLASH_TESTS_KERNELS_CASES_H

#include "guarded.h"
#include "problem.h"
#include "random.h"

/* What a candidate writes, [rows][stride] elements of a type. What a row has beyond its columns may
 * be anything; candidates may write whole vectors. */
typedef struct output {
    guarded_t computed;
    guarded_t expected;
    void *initial; /* the bytes that it begins with; NULL: NaN */
    int32_t dtype;
    int64_t rows;
    int64_t columns;
    int64_t stride;
    float absolute; /* the error that is allowed: absolute + relative * |expected| */
    float relative;
} output_t;

typedef struct test_case {
    problem_t problem;
    output_t outputs[OUTPUTS_MAX];
    int n_outputs;
    guarded_t keys;
    float *x;
    int32_t *seen;
} test_case_t;

/* How a problem is drawn. */
typedef struct drawing {
    const instruction_set_t *set;
    candidate_t candidate;
    int32_t dtype;
    bool timed; /* d_head 128, 64 keys, and as many rows as timed_rows */
    int64_t timed_rows;
} drawing_t;

/* Says whether the candidate of the set has cases of the type; one without a type has FP32. */
bool case_has_dtype(const instruction_set_t *set, candidate_t candidate, int32_t dtype);

/* Draws a case, which case_free() frees. */
test_case_t case_draw(const drawing_t *drawing, random_t *random);
void case_free(test_case_t *c);

#endif
