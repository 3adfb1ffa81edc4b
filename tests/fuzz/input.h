/*
 * Arguments made of the fuzzer's bytes, and memory of exactly the extent that they describe, so
 * that a sanitizer sees every byte too far.
 */
#ifndef FLASH_TESTS_FUZZ_INPUT_H
#define FLASH_TESTS_FUZZ_INPUT_H

#include "flashattn.h"

#include <stdbool.h>

enum {
    MOST_ELEMENTS = 1 << 15, /* of a tensor in memory, at most */
    MOST_BATCH = 4,
    MOST_HEADS = 16,
    MOST_QUERIES = 256,      /* of all sequences' queries, where a call computes */
    MOST_IDS = 8,            /* pages of a sequence */
    MOST_PAGES = 128,        /* whose ids are taken */
    MOST_STRIDE = MOST_HEADS /* of scales */
};

typedef struct input {
    const uint8_t *data;
    size_t size;
} input_t;

/* Takes the next bytes into *value. Bytes that are missing keep their value. */
void take(input_t *in, void *value, size_t size);

uint8_t take_byte(input_t *in);

/* Takes mostly 0 ... small, and sometimes any number. */
int64_t take_number(input_t *in, int64_t small);

/* Takes FLASH_DTYPE_..., 0, or sometimes what is no type. */
int32_t take_any_dtype(input_t *in);

/* Takes mostly 0, the type of the call, and sometimes another type or no type. */
int32_t take_dtype(input_t *in);

/* Takes mostly 0 ... most, often some blocks of quantised numbers, and sometimes `latent`. */
int64_t take_d_head(input_t *in, int64_t most, int64_t latent);

/* Counts the elements of a row of d_head numbers. They are bytes where the row is a latent token or
 * of quantised blocks. */
int64_t row_elements(int64_t d_head, int32_t dtype);

/* Returns the bytes of an element of the type, the call's where it is 0. */
int64_t element_size(int32_t call_dtype, int32_t dtype);

/* Takes 0 or any number. */
float take_float(input_t *in);

/* Takes a tensor without data, mostly a contiguous one of rows of so many elements. */
flash_tensor_t take_tensor(input_t *in, int64_t seqlen, int64_t heads, int64_t row);

/* Takes boundaries of ragged sequences, mostly good ones. */
void take_ascending(input_t *in, int32_t cu[MOST_BATCH + 1]);

/* The arrays of pages. With small numbers each is as long as the library may read. */
typedef struct pages {
    flash_paging_t paging;
    int32_t table[MOST_BATCH * MOST_IDS];
    int32_t v_table[MOST_BATCH * MOST_IDS];
    int32_t indptr[MOST_BATCH + 1];
    int32_t rows[MOST_BATCH];
    int64_t rows64[MOST_BATCH];
} pages_t;

/* Returns NULL where the call has no pages. */
const flash_paging_t *take_pages(input_t *in, pages_t *g);

/* The arrays of scales, each as long as strides of small numbers reach. */
typedef struct scales {
    flash_quant_t quant;
    float k[(MOST_PAGES + MOST_HEADS) * MOST_STRIDE];
    float v[(MOST_PAGES + MOST_HEADS) * MOST_STRIDE];
    float q[(MOST_BATCH + MOST_HEADS + MOST_QUERIES) * MOST_STRIDE];
} scales_t;

/* Returns NULL where the call has no scales. */
const flash_quant_t *take_scales(input_t *in, scales_t *s);

/* Counts the elements that n tensors span which lie stride apart and have rows of `row` elements.
 * Returns false if they are too many, or no number. Strides that are never taken, or are to be
 * refused, do not count. */
bool get_extent(const flash_tensor_t *tensor, const int64_t sizes[3], int64_t row, int64_t stride,
                int64_t n, int64_t *elements);

/* Allocates memory that is filled with a value. */
void *filled(int64_t bytes, uint8_t value);

#endif
