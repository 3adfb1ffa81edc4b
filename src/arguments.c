/*
 * Validation and normalisation of a call's arguments.
 */
#include "arguments.h"

#include "common/sequence.h"
#include "config.h"
#include "status.h"
#include "struct_size.h"
#include "tensor.h"

#include <inttypes.h>
#include <math.h>

enum {
    ALL_FLAGS = FLASH_FLAG_CAUSAL | FLASH_FLAG_WINDOW | FLASH_FLAG_BATCH_INVARIANT,
    UNBOUNDED = -1
};

/* ---- Sizes, types and flags ---- */

static flash_status_t check_size(const char *name, int64_t size) {
    FLASH_REQUIRE(size >= 0 && size <= INT32_MAX, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s is %" PRId64 ": not within 0 ... %" PRId32, name, size, INT32_MAX);
    return FLASH_SUCCESS;
}

static flash_status_t check_d_head(int64_t d_head) {
    FLASH_TRY(check_size("d_head", d_head));
    FLASH_REQUIRE(d_head >= 1, FLASH_ERROR_INVALID_ARGUMENT, "d_head is 0: at least 1");
    return FLASH_SUCCESS;
}

static flash_status_t check_dtype(const char *name, int32_t dtype) {
    FLASH_REQUIRE(dtype_size(dtype) != 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s is %" PRId32 ": no such element type (FLASH_DTYPE_...)", name, dtype);
    return FLASH_SUCCESS;
}

static flash_status_t check_heads(const flash_forward_args_t *a) {
    FLASH_TRY(check_size("n_heads", a->n_heads));
    FLASH_TRY(check_size("n_heads_kv", a->n_heads_kv));
    if (a->n_heads == 0)
        return FLASH_SUCCESS;
    FLASH_REQUIRE(a->n_heads_kv != 0 && a->n_heads % a->n_heads_kv == 0,
                  FLASH_ERROR_INVALID_ARGUMENT,
                  "n_heads is %" PRId64 ": not a multiple of n_heads_kv, %" PRId64, a->n_heads,
                  a->n_heads_kv);
    return FLASH_SUCCESS;
}

static flash_status_t check_sizes(const flash_forward_args_t *a) {
    FLASH_TRY(check_size("batch", a->batch));
    FLASH_TRY(check_size("seqlen_q", a->seqlen_q));
    FLASH_TRY(check_size("seqlen_k", a->seqlen_k));
    FLASH_TRY(check_heads(a));
    return check_d_head(a->d_head);
}

static flash_status_t check_window_side(const char *name, int64_t keys, bool counts) {
    FLASH_REQUIRE(keys >= UNBOUNDED, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s is %" PRId64 ": not -1 (unbounded) or a number of keys", name, keys);
    FLASH_REQUIRE(counts || keys <= 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s is %" PRId64 " without FLASH_FLAG_WINDOW", name, keys);
    return FLASH_SUCCESS;
}

static flash_status_t check_mask(const flash_forward_args_t *a) {
    const bool window = (a->flags & FLASH_FLAG_WINDOW) != 0;
    FLASH_REQUIRE((a->flags & ~(uint32_t)ALL_FLAGS) == 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "flags is 0x%" PRIx32 ": unknown bits 0x%" PRIx32, a->flags,
                  a->flags & ~(uint32_t)ALL_FLAGS);
    FLASH_TRY(check_window_side("window_left", a->window_left, window));
    return check_window_side("window_right", a->window_right, window);
}

static flash_status_t check_not_negative(const char *name, float value) {
    FLASH_REQUIRE(isfinite(value) && value >= 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s is %g: not finite and at least 0", name, (double)value);
    return FLASH_SUCCESS;
}

static flash_status_t check_shape(const flash_forward_args_t *a) {
    FLASH_TRY(check_dtype("dtype", a->dtype));
    FLASH_TRY(check_sizes(a));
    FLASH_TRY(check_mask(a));
    FLASH_TRY(check_not_negative("softmax_scale", a->softmax_scale));
    return check_not_negative("softcap", a->softcap);
}

/* One side of the window; unbounded when it hides no key of any sequence, which a call that must
 * not look at the longest sequence does not ask. */
static int32_t window_side(int64_t keys, int64_t hides_none_from, bool batch_invariant) {
    if (keys >= hides_none_from && !batch_invariant)
        return UNBOUNDED;
    return keys > INT32_MAX ? INT32_MAX : (int32_t)keys;
}

/* The window that the flags ask for. */
static void set_window(flash_params_t *p, const flash_forward_args_t *a) {
    const bool window = (a->flags & FLASH_FLAG_WINDOW) != 0;
    int64_t left = window ? a->window_left : UNBOUNDED;
    int64_t right = window ? a->window_right : UNBOUNDED;
    if (a->flags & FLASH_FLAG_CAUSAL)
        right = 0;
    const bool batch_invariant = (a->flags & FLASH_FLAG_BATCH_INVARIANT) != 0;
    p->window_left = window_side(left, a->seqlen_k, batch_invariant);
    p->window_right = window_side(right, a->seqlen_q - 1, batch_invariant);
}

static int32_t needed_features(const flash_params_t *p) {
    int32_t features = 0;
    if (p->window_left == UNBOUNDED && p->window_right == 0)
        features |= FLASH_FEATURE_CAUSAL;
    else if (p->window_left != UNBOUNDED || p->window_right != UNBOUNDED)
        features |= FLASH_FEATURE_WINDOW;
    if (p->softcap > 0)
        features |= FLASH_FEATURE_SOFTCAP;
    if (p->cu_seqlens_q || p->cu_seqlens_k || p->seqused_k)
        features |= FLASH_FEATURE_VARLEN;
    return features;
}

static flash_strides_t strides(const flash_tensor_t *tensor, bool ragged) {
    const flash_strides_t s = {ragged ? 0 : tensor->stride_batch, tensor->stride_seq,
                               tensor->stride_head};
    return s;
}

static void set_tensors(flash_params_t *p, const flash_forward_args_t *a) {
    const bool ragged_q = a->cu_seqlens_q != NULL;
    const bool ragged_k = a->cu_seqlens_k != NULL;
    p->q = a->q.data;
    p->k = a->k.data;
    p->v = a->v.data;
    p->o = a->o.data;
    p->lse = a->lse;
    p->q_stride = strides(&a->q, ragged_q);
    p->k_stride = strides(&a->k, ragged_k);
    p->v_stride = strides(&a->v, ragged_k);
    p->o_stride = strides(&a->o, ragged_q);
    p->cu_seqlens_q = a->cu_seqlens_q;
    p->cu_seqlens_k = a->cu_seqlens_k;
    p->seqused_k = a->seqused_k;
}

static void set_params(flash_params_t *p, const flash_forward_args_t *a) {
    set_tensors(p, a);
    p->batch = (int32_t)a->batch;
    p->seqlen_q = (int32_t)a->seqlen_q;
    p->seqlen_k = (int32_t)a->seqlen_k;
    p->n_heads = (int32_t)a->n_heads;
    p->n_heads_kv = (int32_t)a->n_heads_kv;
    p->group = a->n_heads == 0 ? 0 : (int32_t)(a->n_heads / a->n_heads_kv);
    p->d_head = (int32_t)a->d_head;
    p->softmax_scale =
        a->softmax_scale > 0 ? a->softmax_scale : (float)(1.0 / sqrt((double)a->d_head));
    p->softcap = a->softcap;
    set_window(p, a);
}

static void set_problem(problem_t *problem, const flash_forward_args_t *a) {
    *problem = (problem_t){.dtype = a->dtype,
                           .device = a->device,
                           .has_output = a->batch > 0 && a->seqlen_q > 0 && a->n_heads > 0,
                           .batch_invariant = (a->flags & FLASH_FLAG_BATCH_INVARIANT) != 0,
                           .workspace = a->workspace,
                           .workspace_size = a->workspace_size};
    set_params(&problem->params, a);
    problem->features = needed_features(&problem->params);
}

flash_status_t arguments_read(const flash_forward_args_t *args, flash_forward_args_t *own,
                              problem_t *problem) {
    FLASH_TRY(struct_read(own, sizeof *own, args, "flash_forward_args_t"));
    FLASH_TRY(check_shape(own));
    set_problem(problem, own);
    return FLASH_SUCCESS;
}

/* ---- Lengths ---- */

/* Ascending from 0, no step longer than seqlen. *total: tokens in all. */
static flash_status_t check_cu_seqlens(const char *name, const int32_t *cu_seqlens, int32_t batch,
                                       int32_t seqlen, int64_t *total) {
    int32_t last = flash_load_length(cu_seqlens, 0);
    FLASH_REQUIRE(last == 0, FLASH_ERROR_INVALID_ARGUMENT, "%s[0] is %" PRId32 ": not 0", name,
                  last);
    for (int32_t b = 0; b < batch; b++) {
        const int32_t next = flash_load_length(cu_seqlens, (int64_t)b + 1);
        FLASH_REQUIRE(next >= last, FLASH_ERROR_INVALID_ARGUMENT,
                      "%s[%" PRId32 "] is %" PRId32 ": below the %" PRId32 " before it", name,
                      b + 1, next, last);
        FLASH_REQUIRE(next - last <= seqlen, FLASH_ERROR_INVALID_ARGUMENT,
                      "%s[%" PRId32 "] - %s[%" PRId32 "] is %" PRId32 ": longer than %" PRId32
                      ", the longest sequence announced",
                      name, b + 1, name, b, next - last, seqlen);
        last = next;
    }
    *total = last;
    return FLASH_SUCCESS;
}

static flash_status_t check_seqused_k(const flash_params_t *p) {
    flash_params_t all_keys = *p;
    all_keys.seqused_k = NULL;
    for (int32_t b = 0; b < p->batch; b++) {
        const int32_t used = flash_load_length(p->seqused_k, b);
        const int32_t len_k = flash_sequence(&all_keys, b).len_k;
        FLASH_REQUIRE(used >= 0 && used <= len_k, FLASH_ERROR_INVALID_ARGUMENT,
                      "seqused_k[%" PRId32 "] is %" PRId32 ": not within 0 ... %" PRId32
                      ", the keys of that sequence",
                      b, used, len_k);
    }
    return FLASH_SUCCESS;
}

/* total_q, total_k: tokens of each batch entry's axis; becomes those of the ragged tensor. */
static flash_status_t check_lengths(const flash_params_t *p, int64_t *total_q, int64_t *total_k) {
    if (p->cu_seqlens_q)
        FLASH_TRY(
            check_cu_seqlens("cu_seqlens_q", p->cu_seqlens_q, p->batch, p->seqlen_q, total_q));
    if (p->cu_seqlens_k)
        FLASH_TRY(
            check_cu_seqlens("cu_seqlens_k", p->cu_seqlens_k, p->batch, p->seqlen_k, total_k));
    return p->seqused_k ? check_seqused_k(p) : FLASH_SUCCESS;
}

/* ---- Tensors ---- */

/* CUDA kernels load and store whole elements; a NULL is aligned to everything. */
static flash_status_t check_alignment(const char *name, const void *data, int64_t size) {
    FLASH_REQUIRE((uintptr_t)data % (uintptr_t)size == 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s is %p: not aligned to its elements of %" PRId64
                  " bytes, as CUDA devices need it",
                  name, data, size);
    return FLASH_SUCCESS;
}

static flash_status_t check_alignments(const flash_forward_args_t *a) {
    const int64_t size = dtype_size(a->dtype);
    FLASH_TRY(check_alignment("q.data", a->q.data, size));
    FLASH_TRY(check_alignment("k.data", a->k.data, size));
    FLASH_TRY(check_alignment("v.data", a->v.data, size));
    FLASH_TRY(check_alignment("o.data", a->o.data, size));
    FLASH_TRY(check_alignment("lse", a->lse, sizeof *a->lse));
    FLASH_TRY(check_alignment("cu_seqlens_q", a->cu_seqlens_q, sizeof *a->cu_seqlens_q));
    FLASH_TRY(check_alignment("cu_seqlens_k", a->cu_seqlens_k, sizeof *a->cu_seqlens_k));
    return check_alignment("seqused_k", a->seqused_k, sizeof *a->seqused_k);
}

static flash_status_t check_tensors(const flash_forward_args_t *a, int64_t total_q,
                                    int64_t total_k) {
    const int64_t size = dtype_size(a->dtype);
    const int64_t batch_q = a->cu_seqlens_q ? 1 : a->batch;
    const int64_t batch_k = a->cu_seqlens_k ? 1 : a->batch;
    const tensor_shape_t q = {batch_q, total_q, a->n_heads, a->d_head, size};
    const tensor_shape_t k = {batch_k, total_k, a->n_heads_kv, a->d_head, size};
    FLASH_TRY(tensor_check("q", &a->q, &q));
    FLASH_TRY(tensor_check("k", &a->k, &k));
    FLASH_TRY(tensor_check("v", &a->v, &k));
    FLASH_TRY(tensor_check("o", &a->o, &q));
    return tensor_check_output("o", &a->o, &q);
}

/* Tokens along the axis of a tensor whose lengths are not in host memory: a ragged one's number is
 * not known, but it has some if its sequences may. */
static int64_t known_tokens(const int32_t *cu_seqlens, int32_t seqlen) {
    return cu_seqlens != NULL && seqlen > 1 ? 1 : seqlen;
}

flash_status_t arguments_check_data(const flash_forward_args_t *own, bool on_host,
                                    problem_t *problem) {
    const flash_params_t *p = &problem->params;
    int64_t total_q = known_tokens(p->cu_seqlens_q, p->seqlen_q);
    int64_t total_k = known_tokens(p->cu_seqlens_k, p->seqlen_k);
    if (on_host)
        FLASH_TRY(check_lengths(p, &total_q, &total_k));
    else
        FLASH_TRY(check_alignments(own));
    FLASH_TRY(check_tensors(own, total_q, total_k));
    problem->has_output = problem->has_output && total_q > 0;
    return FLASH_SUCCESS;
}

/* ---- Combine ---- */

static flash_status_t check_combine_shape(const flash_combine_args_t *a) {
    FLASH_TRY(check_dtype("dtype_partial", a->dtype_partial));
    FLASH_TRY(check_dtype("dtype", a->dtype));
    FLASH_TRY(check_size("n_partials", a->n_partials));
    FLASH_TRY(check_size("batch", a->batch));
    FLASH_TRY(check_size("seqlen_q", a->seqlen_q));
    FLASH_TRY(check_size("n_heads", a->n_heads));
    return check_d_head(a->d_head);
}

static flash_status_t check_combine_tensors(const flash_combine_args_t *a) {
    const tensor_shape_t partial = {a->batch, a->seqlen_q, a->n_heads, a->d_head,
                                    dtype_size(a->dtype_partial)};
    const tensor_shape_t o = {a->batch, a->seqlen_q, a->n_heads, a->d_head, dtype_size(a->dtype)};
    if (a->n_partials > 0) {
        FLASH_TRY(tensor_check("o_partial", &a->o_partial, &partial));
        FLASH_TRY(tensor_check_repeat("o_partial", &a->o_partial, &partial, a->stride_partial,
                                      a->n_partials));
        FLASH_REQUIRE(a->lse_partial != NULL || tensor_is_empty(&partial),
                      FLASH_ERROR_INVALID_ARGUMENT, "lse_partial is NULL");
    }
    FLASH_TRY(tensor_check("o", &a->o, &o));
    return tensor_check_output("o", &a->o, &o);
}

static flash_status_t check_combine_alignments(const flash_combine_args_t *a) {
    FLASH_TRY(check_alignment("o_partial.data", a->o_partial.data, dtype_size(a->dtype_partial)));
    FLASH_TRY(check_alignment("lse_partial", a->lse_partial, sizeof *a->lse_partial));
    FLASH_TRY(check_alignment("o.data", a->o.data, dtype_size(a->dtype)));
    return check_alignment("lse", a->lse, sizeof *a->lse);
}

flash_status_t arguments_read_combine(const flash_combine_args_t *args,
                                      flash_combine_args_t *checked) {
    FLASH_TRY(struct_read(checked, sizeof *checked, args, "flash_combine_args_t"));
    FLASH_TRY(check_combine_shape(checked));
    if (checked->device != FLASH_DEVICE_CPU)
        FLASH_TRY(check_combine_alignments(checked));
    return check_combine_tensors(checked);
}
