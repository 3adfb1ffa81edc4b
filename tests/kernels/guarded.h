/*
 * Memory for tests of micro-kernels. Outputs lie between canaries and begin as NaN; inputs end
 * where a page begins that may not be read. Both fail the program when there is no memory.
 */
#ifndef FLASH_TESTS_KERNELS_GUARDED_H
#define FLASH_TESTS_KERNELS_GUARDED_H

#include <stdbool.h>
#include <stddef.h>

typedef struct guarded {
    unsigned char *memory; /* what is freed or unmapped */
    size_t memory_size;
    void *data;
    size_t size;
} guarded_t;

/* Returns an output of that size, which begins at a multiple of 64. */
guarded_t guarded_output(size_t size);

/* Fills an output with the bytes of `initial`, or with ones where it is NULL: NaN of every type. */
void guarded_reset(const guarded_t *output, const void *initial);

/* Says whether the canaries of an output are as they were. */
bool guarded_is_intact(const guarded_t *output);

void guarded_free_output(guarded_t *output);

/* Returns an input of that size, of which the last one is the last one of a page. */
guarded_t guarded_input(size_t size);

void guarded_free_input(guarded_t *input);

#endif
