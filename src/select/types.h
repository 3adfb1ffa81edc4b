/*
 * Element types of a problem: which of them a family's kernels serve together, and their names.
 */
#ifndef FLASH_SELECT_TYPES_H
#define FLASH_SELECT_TYPES_H

#include "config/facts.h"
#include "core/problem.h"

#include <stdbool.h>

enum { TYPES_NAME_SIZE = 64, TYPES_PAIRS_SIZE = 256 };

/* The tensor whose type no kernel of the family serves beside K and V of this type, "q.dtype" or
 * "o.dtype"; NULL: they go together. */
const char *types_mismatch(const family_facts_t *facts, const problem_t *problem);

/* The problem's types: that of K and V, as "BF16", or "BF16 (Q BF16, O FP32)" where they differ. */
void types_name(const problem_t *problem, char text[TYPES_NAME_SIZE]);

/* Types of Q and O, a bit for each two of them, that go with K and V of a type. */
typedef struct types_pairs {
    uint64_t bits;
} types_pairs_t;

void types_add(types_pairs_t *pairs, const family_facts_t *facts, int32_t kv);

/* All of them, Q first, as "BF16 and BF16, BF16 and FP32"; "none" where there are none. */
void types_name_pairs(types_pairs_t pairs, char text[TYPES_PAIRS_SIZE]);

#endif
