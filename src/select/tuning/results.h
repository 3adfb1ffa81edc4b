/*
 * Measured results: which kernel was the fastest for problems of a kind on a device, from the
 * caller (flash_set_tuning(), FLASH_TUNING) and built into the library. The text form of a result
 * is in format.c; flashattn.h says what a result counts for.
 */
#ifndef FLASH_TUNING_RESULTS_H
#define FLASH_TUNING_RESULTS_H

#include "flashattn.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What problems that share their results have in common, in sort order. codegen/tuning.py writes
 * the same. */
enum {
    TUNING_COMPUTE_CAPABILITY,
    TUNING_MULTIPROCESSORS,
    TUNING_DTYPE,
    TUNING_D_HEAD,
    TUNING_FEATURES,
    TUNING_LOG2_Q,     /* rounded: queries of the longest sequence, */
    TUNING_LOG2_K,     /* the most keys that one of them sees, */
    TUNING_LOG2_HEADS, /* batch * n_heads */
    TUNING_N_FIELDS
};

typedef struct tuning_key {
    int32_t fields[TUNING_N_FIELDS];
} tuning_key_t;

typedef struct tuning_row {
    tuning_key_t key;
    int64_t nanoseconds;
    const flash_kernel_t *kernel;
} tuning_row_t;

/* The results built into the library, in ascending order: generated from codegen/results/. */
extern const tuning_row_t tuning_table[];
extern const int32_t tuning_table_count;

/* The results of a caller, in ascending order. Never changed nor freed once they are in force. */
typedef struct tuning_results {
    struct tuning_results *older; /* were in force before these */
    bool alone;                   /* the built-in ones do not count */
    int32_t count;
    tuning_row_t rows[];
} tuning_results_t;

int tuning_compare_keys(const tuning_key_t *a, const tuning_key_t *b);

/* Compares in ascending order: by key, the fastest first, then in the order of the kernel table. */
int tuning_compare(const tuning_row_t *a, const tuning_row_t *b);

/* Returns the logarithm to the base 2, rounded to the nearest; 0 for sizes below 2. */
int32_t tuning_size_class(int64_t size);

#endif
