/*
 * The plan of a backward call on a CUDA device says what is copied before its kernels run, and
 * where everything lies in the workspace. It depends on the problem alone.
 *
 *     | row_d | row_log_sum | parts of the gradients of sinks | copies of Q, K, V, dO | rest |
 *
 * Each begins at a multiple of 256 bytes; the rest is that of the kernels of gradients.
 */
#ifndef FLASH_CUDA_PLAN_BACKWARD_H
#define FLASH_CUDA_PLAN_BACKWARD_H

#include "core/problem.h"
#include "kernels/common/copy_q.h"
#include "kernels/common/row_sums.h"

/* These inputs may be copied. */
typedef enum backward_input {
    BACKWARD_Q,
    BACKWARD_K,
    BACKWARD_V,
    BACKWARD_D_O,
    BACKWARD_N_INPUTS
} backward_input_t;

/* A tensor, or its copy. */
typedef struct backward_tensor {
    const void *data;
    flash_strides_t stride;
    int32_t dtype;
} backward_tensor_t;

typedef struct backward_copy {
    backward_tensor_t from;
    backward_tensor_t to;      /* without data; what kernels read if it is copied */
    const int32_t *cu_seqlens; /* of the tensor's tokens */
    int64_t n_tokens;
    int32_t seqlen;
    int32_t n_heads;
    int32_t d_head;
    uint64_t at; /* in the workspace */
    bool is_copied;
} backward_copy_t;

typedef struct backward_plan {
    uint64_t row_d;
    uint64_t row_log_sum;
    uint64_t sink_sums;
    uint64_t rest; /* where the rest begins */
    uint64_t size; /* bytes of all but the rest, with those that alignment may take */
    int64_t n_sink_places;
    backward_copy_t copies[BACKWARD_N_INPUTS];
} backward_plan_t;

backward_plan_t plan_backward(const problem_t *problem);

/* Returns the bytes of a call's workspace that are not its kernels'. */
uint64_t plan_backward_size(const problem_t *problem);

/* Makes the problem that of the kernels: their inputs, the rest of the workspace, which has been
 * checked, and the places of rows. Returns the place of the parts of the gradients of sinks. */
float *plan_backward_place(const backward_plan_t *plan, problem_t *problem);

/* Returns what the kernel that makes a copy is told. to: where the copy lies. */
copy_q_params_t plan_backward_copy(const backward_copy_t *copy, const void *to, int32_t batch);

#endif
