/*
 * One row, a head of a token, is appended on any CPU.
 */
#ifndef FLASH_KERNELS_CPU_APPEND_ROW_H
#define FLASH_KERNELS_CPU_APPEND_ROW_H

#include <stdint.h>

/* A row, from where it is to where it goes. */
typedef struct append_row {
    const void *from;
    void *to; /* apart from `from`, or the same */
    int32_t from_dtype;
    int32_t to_dtype;
    int64_t d_head;
    float inverse_scale; /* that of `to`, if it is of e4m3 */
} append_row_t;

/* The angles of a row's position. */
typedef struct append_angles {
    const void *cos; /* [n_pairs] */
    const void *sin;
    int32_t dtype;
    int32_t n_pairs; /* 0: the row does not turn */
    int32_t is_interleaved;
} append_angles_t;

void append_row(const append_row_t *row, const append_angles_t *angles);

#endif
