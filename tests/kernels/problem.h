/*
 * What the tests of micro-kernels share: the candidates' names, the problem that a candidate and
 * its reference compute, and the instruction sets, each of which has routines for candidates.
 */
#ifndef FLASH_TESTS_KERNELS_PROBLEM_H
#define FLASH_TESTS_KERNELS_PROBLEM_H

#include <stdbool.h>
#include <stdint.h>

/* The candidates. cases.c says what each reads of its problem and writes; reference.c has the plain
 * code of each, and instruction_set.c calls the kernels' own. */
#define CANDIDATES(X)                                                                              \
    X(exp2)                                                                                        \
    X(tanh)                                                                                        \
    X(sums)                                                                                        \
    X(transpose)                                                                                   \
    X(load)                                                                                        \
    X(load_pairs)                                                                                  \
    X(load_quantised)                                                                              \
    X(decode)                                                                                      \
    X(store)                                                                                       \
    X(pack_k)                                                                                      \
    X(pack_v)                                                                                      \
    X(pack_squares)                                                                                \
    X(scores_packed)                                                                               \
    X(values_packed)                                                                               \
    X(scores_in_place)                                                                             \
    X(values_in_place)                                                                             \
    X(softmax)                                                                                     \
    X(softcap)                                                                                     \
    X(merge_parts)                                                                                 \
    X(merge_partials)

#define CANDIDATE_NAME(name) CANDIDATE_##name,
typedef enum candidate { CANDIDATES(CANDIDATE_NAME) N_CANDIDATES } candidate_t;
#undef CANDIDATE_NAME

enum { OUTPUTS_MAX = 3, HEADS_MAX = 2 };

/* The inputs of a candidate, which it does not write. Sizes are in elements. */
typedef struct problem {
    const struct instruction_set *set; /* whose routine is compared with the reference */
    int32_t dtype;                     /* of keys */
    int64_t rows;                      /* of each head, of x and of the outputs */
    int64_t n_heads;
    int64_t n_keys;
    int64_t d;
    const void *keys; /* [n_keys][n_heads][d], rows of K or V; or [n_keys][d], elements */
    int64_t stride;   /* from key to key */
    const float *x;   /* [n_heads * rows][x_stride]: scores, Q, P, or whatever there is one of */
    int64_t x_stride;
    const int32_t *begin; /* [n_heads * rows], the keys that a row sees: begin ... end - 1 */
    const int32_t *end;
    float softmax_scale;
    float softcap;
    float sink; /* of merged partial results; -infinity: none */
} problem_t;

/* Computes a problem, to the outputs of its case. */
typedef void (*routine_t)(const problem_t *problem, void *const outputs[OUTPUTS_MAX]);

/* How an instruction set computes a candidate. What `prepare` and `finish` do is not timed; either
 * may be NULL, and `run` is NULL where the set does not have the candidate. */
typedef struct implementation {
    routine_t prepare;
    routine_t run;
    routine_t finish;
} implementation_t;

typedef struct instruction_set {
    const char *name;
    uint32_t isa;          /* the FLASH_ISA_... that the processor must have */
    int64_t vec_width;     /* elements of fp32 of a vector */
    int64_t tile_columns;  /* words of a panel of packed keys */
    int64_t word_elements; /* 2 where pairs of bf16 are multiplied (tiled/words.h), else 1 */
    bool has_tiles;        /* keys in place are a square of 32, which at most 16 rows all see */
    implementation_t candidates[N_CANDIDATES];
} instruction_set_t;

/* Returns n, or the next multiple after it. */
static inline int64_t next_multiple(int64_t n, int64_t of) {
    return (n + of - 1) / of * of;
}

/* Returns the words of a row of P or S of the problem: whole vectors of any instruction set. */
static inline int64_t padded_keys(const problem_t *p) {
    return next_multiple(p->n_keys, 16);
}

static inline int64_t padded_d(const problem_t *p) {
    return next_multiple(p->d, 16);
}

#endif
