/*
 * These functions compare the element types of a problem with those that a family's kernels serve
 * together, and name them.
 */
#ifndef FLASH_SELECT_TYPES_H
#define FLASH_SELECT_TYPES_H

#include "config/facts.h"
#include "core/problem.h"

#include <stdbool.h>

enum { TYPES_NAME_SIZE = 64, TYPES_PAIRS_SIZE = 256 };

/* Returns the tensor, "q.dtype" or "o.dtype", whose type no kernel of the family serves with the
 * problem's K and V; NULL if some kernel serves all types. */
const char *types_mismatch(const family_facts_t *facts, const problem_t *problem);

/* Writes the problem's types: "BF16", or "BF16 (Q BF16, O FP32)", with K and V first. */
void types_name(const problem_t *problem, char text[TYPES_NAME_SIZE]);

/* Pairs of types of Q and O that go with K and V of one type, a bit per pair. */
typedef struct types_pairs {
    uint64_t bits;
} types_pairs_t;

void types_add(types_pairs_t *pairs, const family_facts_t *facts, int32_t kv);

/* Writes all pairs, Q first, as "BF16 and BF16, BF16 and FP32"; "none" if there are none. */
void types_name_pairs(types_pairs_t pairs, char text[TYPES_PAIRS_SIZE]);

#endif
