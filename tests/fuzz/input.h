/*
 * Arguments made of the fuzzer's bytes, and memory of exactly the extent that they describe, so
 * that a byte too far is seen.
 */
#ifndef FLASH_TESTS_FUZZ_INPUT_H
#define FLASH_TESTS_FUZZ_INPUT_H

#include "flashattn.h"

#include <stdbool.h>

enum { MOST_ELEMENTS = 1 << 14 }; /* of a tensor in memory */

typedef struct input {
    const uint8_t *data;
    size_t size;
} input_t;

/* The next bytes; as they were where there are no more. */
void take(input_t *in, void *value, size_t size);

uint8_t take_byte(input_t *in);

/* Mostly 0 ... small, sometimes anything. */
int64_t take_number(input_t *in, int64_t small);

/* 0, or anything. */
float take_float(input_t *in);

/* A tensor without data: mostly contiguous. */
flash_tensor_t take_tensor(input_t *in, int64_t seqlen, int64_t heads, int64_t d_head);

/* *elements: how many the tensor spans, of which n lie stride apart; false when they are too many,
 * or no number. Strides that are never taken, or to be refused, do not count. */
bool get_extent(const flash_tensor_t *tensor, const int64_t sizes[3], int64_t d_head,
                int64_t stride, int64_t n, int64_t *elements);

/* New memory of so many bytes of a value. */
void *filled(int64_t bytes, uint8_t value);

#endif
