/*
 * The candidates that are no instruction set's own: the merging of partial results.
 */
#ifndef FLASH_TESTS_KERNELS_COMMON_SET_H
#define FLASH_TESTS_KERNELS_COMMON_SET_H

#include "problem.h"

extern const instruction_set_t common_set;

#endif
