/*
 * Rows of one head become e4m3 on any CPU.
 */
#ifndef FLASH_KERNELS_CPU_QUANTISE_ROWS_H
#define FLASH_KERNELS_CPU_QUANTISE_ROWS_H

#include <stdint.h>

typedef struct quantise_rows {
    const void *x;
    int64_t x_stride; /* bytes */
    int32_t dtype;    /* of x */
    uint8_t *codes;
    int64_t codes_stride; /* bytes */
    int64_t n;            /* rows */
    int64_t d;            /* columns */
    void *mean;           /* [d] fp32 of any alignment; NULL: nothing is taken off */
    int64_t turned;       /* columns that a Hadamard matrix turns together; 0: none are */
} quantise_rows_t;

/* Returns row i alone. */
quantise_rows_t quantise_row_of(const quantise_rows_t *rows, int64_t i);

/* Writes the mean of each column over its finite elements; 0 where there are none. */
void quantise_find_mean(const quantise_rows_t *rows);

/* Returns the largest finite magnitude of what is to be quantised: 0 where there is none. */
float quantise_largest(const quantise_rows_t *rows);

/* Writes the codes of the rows. What is not finite becomes NaN. */
void quantise_store(const quantise_rows_t *rows, float scale);

#endif
