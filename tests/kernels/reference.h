/*
 * The candidates in plain C, an element at a time and in double where sums are: what the kernels'
 * own code is compared with.
 */
#ifndef FLASH_TESTS_KERNELS_REFERENCE_H
#define FLASH_TESTS_KERNELS_REFERENCE_H

#include "problem.h"

/* Returns a candidate's reference. */
routine_t reference_of(candidate_t candidate);

#endif
