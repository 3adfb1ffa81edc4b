/*
 * The rest of the library sees an attention problem like this: validated, with defaults filled in.
 */
#ifndef FLASH_PROBLEM_H
#define FLASH_PROBLEM_H

#include "flashattn.h"
#include "kernels/common/gradients.h"
#include "kernels/common/params.h"
#include "kernels/common/sequence.h"

#include <stdbool.h>
#include <string.h>

enum { EXECUTOR_MAX_WORKERS = 4096 };

/* An executor runs the tasks of a call on the CPU. If run is NULL, the library's own threads do, at
 * most n_workers of them. All zero stands for what is set for the process. */
typedef struct executor {
    flash_parallel_for_t run;
    void *context;
    int32_t n_workers;
} executor_t;

/* The limits of a paged cache, as its arrays had them when they were checked. */
typedef struct page_limits {
    int64_t ids;  /* page_indptr[batch], the number of all ids */
    int64_t rows; /* the largest value of page_rows, plus 1 */
} page_limits_t;

/* The rows of other families that compute a mixed batch. */
typedef struct mixed_rows {
    int32_t B_r;                  /* of the MIXED row; 0: they were not looked for yet */
    const flash_kernel_t *decode; /* NULL: no row serves the part */
    const flash_kernel_t *forward;
} mixed_rows_t;

/* The caller's Q of fp32, if kernels are given a copy of it in the type of K, which lies at the
 * begin of the workspace. */
typedef struct wide_q {
    const void *data;
    flash_strides_t stride;
    bool is_copied; /* false: kernels read the caller's Q */
} wide_q_t;

typedef struct problem {
    flash_params_t params;       /* what kernels see of the problem */
    flash_gradients_t gradients; /* what those of the backward pass see besides */
    wide_q_t wide_q;
    int32_t op;    /* FLASH_OP_..., what is to be computed */
    int32_t dtype; /* of K and V */
    int32_t device;
    int32_t features; /* FLASH_FEATURE_... bits that a kernel must have */
    int64_t total_q;  /* tokens of ragged tensors, if lengths in host memory were checked */
    int64_t total_k;
    page_limits_t page_limits;
    bool has_output;          /* some row of O exists */
    bool batch_invariant;     /* the choice of a kernel must not depend on the batch */
    mixed_rows_t *mixed_rows; /* keeps what selection finds for the launch; NULL: nothing does */
    void *workspace;
    uint64_t workspace_size;
    executor_t executor;
} problem_t;

/* Says whether V and O have another head dimension than Q and K. */
static inline bool problem_has_other_d_head_v(const problem_t *problem) {
    return problem->params.d_head_v != problem->params.d_head;
}

/* Says whether V is the first columns of K: at the same address, with the same strides and pages.
 */
static inline bool v_is_in_k(const flash_params_t *p) {
    return p->v == p->k && memcmp(&p->v_stride, &p->k_stride, sizeof p->k_stride) == 0 &&
           p->pages.v_table == p->pages.table && p->d_head_v <= p->d_head;
}

/* Says whether all sequences of the batch have the lengths of its tensors. */
static inline bool problem_lengths_are_equal(const flash_params_t *p) {
    return p->cu_seqlens_q == NULL && p->cu_seqlens_k == NULL && p->seqused_q == NULL &&
           p->seqused_k == NULL && p->leftpad_k == NULL;
}

/* Returns how many keys of a sequence are in use by what seqused_k says, or else cu_seqlens_k; one
 * of them is given. Lengths that nobody has checked may be of any value. */
static inline int64_t problem_keys_in_use(const flash_params_t *p, int32_t batch_index) {
    if (p->seqused_k)
        return flash_load_length(p->seqused_k, batch_index);
    return (int64_t)flash_load_length(p->cu_seqlens_k, (int64_t)batch_index + 1) -
           flash_load_length(p->cu_seqlens_k, batch_index);
}

/* Returns the most keys that a row of Q sees. */
static inline int64_t problem_most_keys(const flash_params_t *p) {
    const int64_t window = (int64_t)p->window_left + p->window_right + 1;
    const bool bounded = p->window_left >= 0 && p->window_right >= 0;
    const int64_t most = bounded && window < p->seqlen_k ? window : p->seqlen_k;
    return p->attention_chunk > 0 && p->attention_chunk < most ? p->attention_chunk : most;
}

/* Estimates the mean number of keys that a row of Q sees. */
static inline int64_t problem_mean_keys(const flash_params_t *p) {
    const bool triangular = p->window_right >= 0 && p->window_left < 0;
    return triangular ? problem_most_keys(p) / 2 : problem_most_keys(p);
}

#endif
