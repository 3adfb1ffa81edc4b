/*
 * This file makes a problem of a backward call's sizes, types and flags.
 */
#include "arguments/backward_arguments.h"

#include "arguments/checks.h"
#include "arguments/forward.h"
#include "arguments/tensor.h"
#include "core/status.h"
#include "core/struct_size.h"

#include <inttypes.h>

enum { ALL_FLAGS = FLASH_BACKWARD_ADD_DQ | FLASH_BACKWARD_ADD_DK | FLASH_BACKWARD_ADD_DV };

/* ---- Types and flags ---- */

static void set_default_types(flash_backward_args_t *a, const flash_forward_args_t *f) {
    const int32_t defaults[] = {f->o.dtype, f->q.dtype, f->k.dtype, f->v.dtype};
    flash_tensor_t *const tensors[] = {&a->d_o, &a->dq, &a->dk, &a->dv};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
        if (tensors[i]->dtype == 0)
            tensors[i]->dtype = defaults[i];
}

/* Gradients are of numbers that are no codes with scales. */
static flash_status_t check_key_types(const flash_forward_args_t *f) {
    FLASH_TRY(argument_check_numbers("k.dtype", f->k.dtype, "K and V with gradients"));
    FLASH_TRY(argument_check_numbers("v.dtype", f->v.dtype, "K and V with gradients"));
    FLASH_REQUIRE(f->k.dtype == f->v.dtype, FLASH_ERROR_UNSUPPORTED,
                  "k.dtype is %" PRId32 " and v.dtype %" PRId32
                  ": K and V of two types have no gradients",
                  f->k.dtype, f->v.dtype);
    FLASH_REQUIRE(f->paging == NULL, FLASH_ERROR_UNSUPPORTED,
                  "paging is given: K and V in pages have no gradients");
    return FLASH_SUCCESS;
}

/* A gradient that is added to what is there must not be rounded at each call. */
static flash_status_t check_gradient(const char *name, const flash_tensor_t *gradient, int32_t of,
                                     bool adds) {
    FLASH_REQUIRE(gradient->dtype == of || gradient->dtype == FLASH_DTYPE_FP32,
                  FLASH_ERROR_UNSUPPORTED,
                  "%s.dtype is %" PRId32 ": neither %" PRId32
                  ", the type of the tensor that it is a gradient of, nor fp32",
                  name, gradient->dtype, of);
    FLASH_REQUIRE(!adds || gradient->dtype == FLASH_DTYPE_FP32, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s.dtype is %" PRId32 ", and flags says that it is added to what is there: only "
                  "one of fp32 is",
                  name, gradient->dtype);
    return FLASH_SUCCESS;
}

static flash_status_t check_types(const flash_backward_args_t *a, const flash_forward_args_t *f) {
    FLASH_REQUIRE((a->flags & ~(uint32_t)ALL_FLAGS) == 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "flags is 0x%" PRIx32 ": unknown bits 0x%" PRIx32, a->flags,
                  a->flags & ~(uint32_t)ALL_FLAGS);
    FLASH_TRY(check_key_types(f));
    FLASH_REQUIRE(a->d_o.dtype == f->o.dtype, FLASH_ERROR_UNSUPPORTED,
                  "d_o.dtype is %" PRId32 ": not that of o, %" PRId32, a->d_o.dtype, f->o.dtype);
    FLASH_TRY(check_gradient("dq", &a->dq, f->q.dtype, a->flags & FLASH_BACKWARD_ADD_DQ));
    FLASH_TRY(check_gradient("dk", &a->dk, f->k.dtype, a->flags & FLASH_BACKWARD_ADD_DK));
    return check_gradient("dv", &a->dv, f->v.dtype, a->flags & FLASH_BACKWARD_ADD_DV);
}

static flash_status_t check_sizes(const flash_backward_args_t *a, const flash_forward_args_t *f) {
    FLASH_TRY(argument_check_size("total_q", a->total_q));
    FLASH_TRY(argument_check_size("total_k", a->total_k));
    FLASH_REQUIRE(a->d_sinks == NULL || f->sinks != NULL, FLASH_ERROR_INVALID_ARGUMENT,
                  "d_sinks is given, and sinks is NULL");
    FLASH_REQUIRE(f->diagonal_offset == 0 || f->device == FLASH_DEVICE_CPU, FLASH_ERROR_UNSUPPORTED,
                  "diagonal_offset is %" PRId64 ", and device is 0x%x: no kernel for CUDA devices "
                  "computes gradients of a shifted diagonal",
                  f->diagonal_offset, (unsigned)f->device);
    return argument_check_reserved("flash_backward_args_t", 0, a->reserved,
                                   sizeof a->reserved / sizeof a->reserved[0]);
}

/* ---- The problem ---- */

static flash_strides_t strides_of(const flash_tensor_t *tensor, const int32_t *cu_seqlens,
                                  int64_t batch, int64_t seqlen, int64_t heads) {
    return tensor_strides(tensor, cu_seqlens != NULL, (const int64_t[]){batch, seqlen, heads});
}

static flash_gradient_t gradient_of(const flash_tensor_t *tensor, flash_strides_t stride,
                                    bool adds) {
    return (flash_gradient_t){tensor->data, stride, tensor->dtype, adds};
}

static flash_strides_t d_lse_strides(const flash_backward_args_t *a, const flash_params_t *p) {
    const int64_t batch = p->cu_seqlens_q ? 0 : a->d_lse_stride_batch;
    if (batch == 0 && a->d_lse_stride_head == 0 && a->d_lse_stride_seq == 0)
        return p->lse_stride;
    return (flash_strides_t){batch, a->d_lse_stride_seq, a->d_lse_stride_head};
}

/* Return the tokens of Q and K that the workspace has room for. */
static int64_t rows_of(const flash_backward_args_t *a, const flash_forward_args_t *f) {
    return f->cu_seqlens_q && a->total_q > 0 ? a->total_q : f->batch * f->seqlen_q;
}

static int64_t keys_of(const flash_backward_args_t *a, const flash_forward_args_t *f) {
    return f->cu_seqlens_k && a->total_k > 0 ? a->total_k : f->batch * f->seqlen_k;
}

static void set_gradients(problem_t *problem, const flash_backward_args_t *a,
                          const flash_forward_args_t *f) {
    const flash_strides_t q =
        strides_of(&a->dq, f->cu_seqlens_q, f->batch, f->seqlen_q, f->n_heads);
    const flash_strides_t k =
        strides_of(&a->dk, f->cu_seqlens_k, f->batch, f->seqlen_k, f->n_heads_kv);
    const flash_strides_t v =
        strides_of(&a->dv, f->cu_seqlens_k, f->batch, f->seqlen_k, f->n_heads_kv);
    problem->gradients = (flash_gradients_t){
        .d_o = a->d_o.data,
        .d_o_stride = strides_of(&a->d_o, f->cu_seqlens_q, f->batch, f->seqlen_q, f->n_heads),
        .d_lse = a->d_lse,
        .d_lse_stride = d_lse_strides(a, &problem->params),
        .dq = gradient_of(&a->dq, q, (a->flags & FLASH_BACKWARD_ADD_DQ) != 0),
        .dk = gradient_of(&a->dk, k, (a->flags & FLASH_BACKWARD_ADD_DK) != 0),
        .dv = gradient_of(&a->dv, v, (a->flags & FLASH_BACKWARD_ADD_DV) != 0),
        .d_sinks = a->d_sinks,
        .n_rows = rows_of(a, f),
        .n_keys = keys_of(a, f)};
    problem->has_output = f->batch > 0 || a->d_sinks != NULL;
    problem->workspace = a->workspace;
    problem->workspace_size = a->workspace_size;
}

flash_status_t arguments_read_backward(const flash_backward_args_t *args,
                                       flash_backward_args_t *checked,
                                       flash_forward_args_t *checked_forward, problem_t *problem) {
    FLASH_TRY(STRUCT_READ(flash_backward_args_t, checked, args));
    FLASH_REQUIRE(checked->forward != NULL, FLASH_ERROR_INVALID_ARGUMENT, "forward is NULL");
    FLASH_TRY(arguments_read(checked->forward, checked_forward, problem));
    set_default_types(checked, checked_forward);
    FLASH_TRY(check_types(checked, checked_forward));
    FLASH_TRY(check_sizes(checked, checked_forward));
    set_gradients(problem, checked, checked_forward);
    checked->forward = checked_forward;
    return FLASH_SUCCESS;
}
