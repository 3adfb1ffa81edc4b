/*
 * A measured result says which kernel was how fast for problems of a kind on a device. Results come
 * from the caller (flash_set_tuning(), FLASHATTN_TUNING), and some are built into the library.
 * format.c has their text form; flashattn.h says which problems a result counts for.
 */
#ifndef FLASH_TUNING_RESULTS_H
#define FLASH_TUNING_RESULTS_H

#include "flashattn.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The fields by which problems share results, in the sort order of codegen/tuning.py. */
enum {
    TUNING_COMPUTE_CAPABILITY,
    TUNING_MULTIPROCESSORS,
    TUNING_OP,
    TUNING_DTYPE,
    TUNING_D_HEAD,
    TUNING_FEATURES,
    TUNING_LOG2_Q,     /* tuning_size_class() of the longest sequence's queries, */
    TUNING_LOG2_K,     /* of the most keys that one of them sees, */
    TUNING_LOG2_HEADS, /* and of batch * n_heads */
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

/* The results built into the library, in ascending order, generated from codegen/results/. */
extern const tuning_row_t tuning_table[];
extern const int32_t tuning_table_count;

/* The results of a caller, in ascending order. Once in force they are never changed or freed. */
typedef struct tuning_results {
    struct tuning_results *older; /* the results that were in force before */
    bool alone;                   /* the built-in results do not count */
    int32_t count;
    tuning_row_t rows[];
} tuning_results_t;

int tuning_compare_keys(const tuning_key_t *a, const tuning_key_t *b);

/* Compares rows: by key, then the fastest first, then in the order of the kernel table. */
int tuning_compare(const tuning_row_t *a, const tuning_row_t *b);

/* Returns the base-2 logarithm of a size, rounded to the nearest integer; 0 for sizes below 2. */
int32_t tuning_size_class(int64_t size);

#endif
