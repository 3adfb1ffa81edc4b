/*
 * This file makes a problem of sizes, types and flags: it validates them and fills in defaults.
 */
#include "arguments/forward.h"

#include "arguments/bias_arguments.h"
#include "arguments/checks.h"
#include "arguments/dropout_arguments.h"
#include "arguments/executor.h"
#include "arguments/latent_arguments.h"
#include "arguments/paging.h"
#include "arguments/quant.h"
#include "arguments/quant_block_arguments.h"
#include "core/device.h"
#include "core/status.h"
#include "core/struct_size.h"
#include "kernels/common/copy_q.h"
#include "kernels/common/dropout.h"
#include "kernels/common/dtype.h"

#include <inttypes.h>
#include <math.h>

enum {
    ALL_FLAGS = FLASH_FLAG_CAUSAL | FLASH_FLAG_WINDOW | FLASH_FLAG_BATCH_INVARIANT |
                FLASH_FLAG_BROADCAST | FLASH_FLAG_PAGE_HOLES | FLASH_FLAG_PAGE_SCALES,
    UNBOUNDED = -1
};

static bool is_for_cuda(const flash_forward_args_t *a) {
    return device_kind(a->device) == device_kind(FLASH_DEVICE_CUDA);
}

/* ---- Sizes, types and flags ---- */

static flash_status_t check_heads(const flash_forward_args_t *a) {
    FLASH_TRY(argument_check_count("n_heads", a->n_heads));
    FLASH_TRY(argument_check_count("n_heads_kv", a->n_heads_kv));
    FLASH_REQUIRE(a->n_heads % a->n_heads_kv == 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "n_heads is %" PRId64 ": not a multiple of n_heads_kv, %" PRId64, a->n_heads,
                  a->n_heads_kv);
    return FLASH_SUCCESS;
}

static flash_status_t check_sizes(const flash_forward_args_t *a) {
    FLASH_TRY(argument_check_size("batch", a->batch));
    FLASH_TRY(argument_check_size("seqlen_q", a->seqlen_q));
    FLASH_TRY(argument_check_size("seqlen_k", a->seqlen_k));
    FLASH_TRY(check_heads(a));
    FLASH_TRY(argument_check_count("d_head", a->d_head));
    return argument_check_count("d_head_v", a->d_head_v);
}

static flash_status_t check_window_side(const char *name, int64_t keys, bool counts) {
    FLASH_REQUIRE(keys >= UNBOUNDED, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s is %" PRId64 ": not -1 (unbounded) or a number of keys", name, keys);
    FLASH_REQUIRE(counts || keys <= 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s is %" PRId64 " without FLASH_FLAG_WINDOW", name, keys);
    return FLASH_SUCCESS;
}

static flash_status_t check_attention_chunk(int64_t keys) {
    FLASH_REQUIRE(keys >= 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "attention_chunk is %" PRId64 ": not 0 (none) or a number of keys", keys);
    return FLASH_SUCCESS;
}

static flash_status_t check_mask(const flash_forward_args_t *a) {
    const bool window = (a->flags & FLASH_FLAG_WINDOW) != 0;
    FLASH_REQUIRE((a->flags & ~(uint32_t)ALL_FLAGS) == 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "flags is 0x%" PRIx32 ": unknown bits 0x%" PRIx32, a->flags,
                  a->flags & ~(uint32_t)ALL_FLAGS);
    FLASH_TRY(check_window_side("window_left", a->window_left, window));
    FLASH_TRY(check_window_side("window_right", a->window_right, window));
    FLASH_REQUIRE(
        !window || a->window_left != UNBOUNDED || a->window_right != UNBOUNDED,
        FLASH_ERROR_INVALID_ARGUMENT,
        "flags has FLASH_FLAG_WINDOW, and neither window_left nor window_right bounds it: "
        "both are -1");
    return check_attention_chunk(a->attention_chunk);
}

static flash_status_t check_not_negative(const char *name, float value) {
    FLASH_REQUIRE(isfinite(value) && value >= 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s is %g: it must be finite and at least 0", name, (double)value);
    return FLASH_SUCCESS;
}

/* Places of queries, and their distances from keys, have 32 bits. */
static flash_status_t check_diagonal_offset(const flash_forward_args_t *a) {
    const int64_t offset = a->diagonal_offset;
    FLASH_REQUIRE(offset >= a->seqlen_q - INT32_MAX && offset <= INT32_MAX - a->seqlen_k,
                  FLASH_ERROR_INVALID_ARGUMENT,
                  "diagonal_offset is %" PRId64 ": of %" PRId64 " queries over %" PRId64
                  " keys, some would stand beyond 2^31 - 1 keys from the first one",
                  offset, a->seqlen_q, a->seqlen_k);
    return FLASH_SUCCESS;
}

/* A tensor that names no type has that of the call. */
static void set_default_types(flash_forward_args_t *a) {
    flash_tensor_t *const tensors[] = {&a->q, &a->k, &a->v, &a->o};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
        if (tensors[i]->dtype == 0)
            tensors[i]->dtype = a->dtype;
}

/* V has the head dimension of K, unless it has one of its own. */
static void set_default_d_head_v(flash_forward_args_t *a) {
    if (a->d_head_v == 0)
        a->d_head_v = a->d_head;
}

/* Which types go together, the kernels decide. */
static flash_status_t check_types(const flash_forward_args_t *a) {
    FLASH_TRY(argument_check_dtype("dtype", a->dtype));
    FLASH_TRY(argument_check_dtype("q.dtype", a->q.dtype));
    FLASH_TRY(argument_check_dtype("k.dtype", a->k.dtype));
    FLASH_TRY(argument_check_dtype("v.dtype", a->v.dtype));
    FLASH_TRY(argument_check_dtype("o.dtype", a->o.dtype));
    FLASH_TRY(argument_check_mixed("k.dtype", a->k.dtype, "v.dtype", a->v.dtype));
    FLASH_TRY(argument_check_query("q.dtype", a->q.dtype, a->k.dtype));
    return argument_check_not_of_keys("o.dtype", a->o.dtype);
}

/* The CPU has threads, which an executor limits. */
static flash_status_t check_multiprocessors(const flash_forward_args_t *a) {
    FLASH_REQUIRE(a->n_multiprocessors >= 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "n_multiprocessors is %" PRId32 ": negative", a->n_multiprocessors);
    FLASH_REQUIRE(a->n_multiprocessors == 0 || is_for_cuda(a), FLASH_ERROR_INVALID_ARGUMENT,
                  "n_multiprocessors is %" PRId32 ", and device is 0x%x, not a CUDA device",
                  a->n_multiprocessors, (unsigned)a->device);
    return FLASH_SUCCESS;
}

static flash_status_t check_reserved(const flash_forward_args_t *a) {
    return argument_check_reserved("flash_forward_args_t", a->reserved32, a->reserved,
                                   sizeof a->reserved / sizeof a->reserved[0]);
}

static flash_status_t check_shape(const flash_forward_args_t *a) {
    FLASH_TRY(check_reserved(a));
    FLASH_TRY(check_types(a));
    FLASH_TRY(check_sizes(a));
    FLASH_TRY(check_multiprocessors(a));
    FLASH_TRY(check_mask(a));
    FLASH_TRY(check_diagonal_offset(a));
    FLASH_TRY(check_not_negative("softmax_scale", a->softmax_scale));
    return check_not_negative("softcap", a->softcap);
}

/* ---- The problem ---- */

/* Returns one side of the window. A side that hides no key of any sequence becomes unbounded, but
 * not in batch-invariant calls, which must not depend on the longest sequence. */
static int32_t window_side(int64_t keys, int64_t hides_none_from, bool batch_invariant) {
    if (keys >= hides_none_from && !batch_invariant)
        return UNBOUNDED;
    return keys > INT32_MAX ? INT32_MAX : (int32_t)keys;
}

static void set_window(flash_params_t *p, const flash_forward_args_t *a) {
    const bool window = (a->flags & FLASH_FLAG_WINDOW) != 0;
    int64_t left = window ? a->window_left : UNBOUNDED;
    int64_t right = window ? a->window_right : UNBOUNDED;
    if (a->flags & FLASH_FLAG_CAUSAL)
        right = 0;
    const bool batch_invariant = (a->flags & FLASH_FLAG_BATCH_INVARIANT) != 0;
    p->window_left = window_side(left, a->seqlen_k + a->diagonal_offset, batch_invariant);
    p->window_right = window_side(right, a->seqlen_q - 1 - a->diagonal_offset, batch_invariant);
}

/* Says whether a query may stand before its sequence's first key, and would see keys there. */
static bool sees_from_before(const flash_params_t *p) {
    const bool stands_before =
        problem_lengths_are_equal(p) ? p->seqlen_q > p->seqlen_k : p->seqlen_q > 1;
    return stands_before && p->window_right != 0;
}

/* A chunk that hides no key of any sequence is none, as with windows. If the diagonal is shifted,
 * queries may stand in another chunk than all keys. */
static void set_attention_chunk(flash_params_t *p, const flash_forward_args_t *a) {
    const bool may_drop = (a->flags & FLASH_FLAG_BATCH_INVARIANT) == 0 && !sees_from_before(p) &&
                          a->diagonal_offset == 0;
    if (a->attention_chunk == 0 || (a->attention_chunk >= a->seqlen_k && may_drop))
        return;
    p->attention_chunk = a->attention_chunk > INT32_MAX ? INT32_MAX : (int32_t)a->attention_chunk;
    p->by_attention_chunk = flash_divider(p->attention_chunk);
}

/* A causal mask that is shifted is a window. */
static int32_t needed_mask(const flash_params_t *p) {
    const bool is_causal = p->window_right == 0 && p->diagonal_offset == 0;
    if (p->window_left != UNBOUNDED || p->attention_chunk > 0)
        return FLASH_FEATURE_WINDOW;
    return is_causal ? FLASH_FEATURE_CAUSAL : p->window_right >= 0 ? FLASH_FEATURE_WINDOW : 0;
}

static int32_t needed_features(const flash_params_t *p) {
    int32_t features = needed_mask(p);
    if (p->softcap > 0)
        features |= FLASH_FEATURE_SOFTCAP;
    if (!problem_lengths_are_equal(p))
        features |= FLASH_FEATURE_VARLEN;
    if (p->pages.page_size > 0)
        features |= FLASH_FEATURE_PAGED;
    return features;
}

static bool has_lse_strides(const flash_forward_args_t *a) {
    const bool ragged = a->cu_seqlens_q != NULL;
    return (a->lse_stride_batch != 0 && !ragged) || a->lse_stride_head != 0 ||
           a->lse_stride_seq != 0;
}

/* LSE without strides is contiguous. If it is ragged, the stride of heads is the number of queries
 * in the batch, which only the device may know. */
static flash_strides_t lse_strides(const flash_forward_args_t *a) {
    const bool ragged = a->cu_seqlens_q != NULL;
    if (has_lse_strides(a))
        return (flash_strides_t){ragged ? 0 : a->lse_stride_batch, a->lse_stride_seq,
                                 a->lse_stride_head};
    if (ragged)
        return (flash_strides_t){.batch = 0, .seq = 1, .head = FLASH_STRIDE_TOTAL};
    return (flash_strides_t){.batch = a->n_heads * a->seqlen_q, .seq = 1, .head = a->seqlen_q};
}

static void set_tensors(flash_params_t *p, const flash_forward_args_t *a) {
    const bool ragged_q = a->cu_seqlens_q != NULL;
    const bool ragged_k = a->cu_seqlens_k != NULL;
    const int64_t q[3] = {a->batch, a->seqlen_q, a->n_heads};
    const int64_t k[3] = {a->batch, a->seqlen_k, a->n_heads_kv};
    p->q = a->q.data;
    p->k = a->k.data;
    p->v = a->v.data;
    p->o = a->o.data;
    p->lse = a->lse;
    p->q_dtype = a->q.dtype;
    p->v_dtype = a->v.dtype;
    p->o_dtype = a->o.dtype;
    p->q_stride = tensor_strides(&a->q, ragged_q, q);
    p->k_stride = tensor_strides(&a->k, ragged_k, k);
    p->v_stride = tensor_strides(&a->v, ragged_k, k);
    p->o_stride = tensor_strides(&a->o, ragged_q, q);
    p->lse_stride = lse_strides(a);
    p->cu_seqlens_q = a->cu_seqlens_q;
    p->cu_seqlens_k = a->cu_seqlens_k;
    p->seqused_q = a->seqused_q;
    p->seqused_k = a->seqused_k;
    p->leftpad_k = a->leftpad_k;
    p->sinks = a->sinks;
}

static void set_pool(flash_params_t *p, const flash_forward_args_t *a) {
    p->k_stride = tensor_pool_strides(&a->k, &p->pages, p->n_heads_kv);
    p->v_stride = tensor_pool_strides(&a->v, &p->pages, p->n_heads_kv);
}

static void set_params(flash_params_t *p, const flash_forward_args_t *a) {
    set_tensors(p, a);
    p->batch = (int32_t)a->batch;
    p->seqlen_q = (int32_t)a->seqlen_q;
    p->seqlen_k = (int32_t)a->seqlen_k;
    p->n_heads = (int32_t)a->n_heads;
    p->n_heads_kv = (int32_t)a->n_heads_kv;
    p->group = (int32_t)(a->n_heads / a->n_heads_kv);
    p->d_head = (int32_t)a->d_head;
    p->d_head_v = (int32_t)a->d_head_v;
    p->softmax_scale =
        a->softmax_scale > 0 ? a->softmax_scale : (float)(1.0 / sqrt((double)a->d_head));
    p->softcap = a->softcap;
    p->diagonal_offset = (int32_t)a->diagonal_offset;
    p->bias.has_page_holes = (a->flags & FLASH_FLAG_PAGE_HOLES) != 0;
    set_window(p, a);
    set_attention_chunk(p, a);
}

/* Says whether kernels get a copy of Q: those of CUDA families multiply 16 bits. */
static bool copies_q(const flash_forward_args_t *a) {
    return is_for_cuda(a) && a->q.dtype == FLASH_DTYPE_FP32 &&
           dtype_size(a->k.dtype) == sizeof(uint16_t);
}

/* Makes the problem that of the copy, whose place the launch knows. */
static void set_copy_of_q(problem_t *problem) {
    flash_params_t *p = &problem->params;
    problem->wide_q = (wide_q_t){.data = p->q, .stride = p->q_stride, .is_copied = true};
    p->q = NULL;
    p->q_dtype = problem->dtype;
    p->q_stride = copy_q_strides(p);
}

static void set_problem(problem_t *problem, const flash_forward_args_t *a,
                        const flash_pages_t *pages) {
    *problem = (problem_t){.op = FLASH_OP_FORWARD,
                           .dtype = a->k.dtype,
                           .device = a->device,
                           .has_output = a->batch > 0 && a->seqlen_q > 0,
                           .batch_invariant = (a->flags & FLASH_FLAG_BATCH_INVARIANT) != 0,
                           .workspace = a->workspace,
                           .workspace_size = a->workspace_size};
    problem->params.pages = *pages;
    set_params(&problem->params, a);
    if (pages->page_size > 0)
        set_pool(&problem->params, a);
    if (copies_q(a))
        set_copy_of_q(problem);
    problem->features = needed_features(&problem->params);
}

flash_status_t arguments_read(const flash_forward_args_t *args, flash_forward_args_t *checked,
                              problem_t *problem) {
    FLASH_TRY(STRUCT_READ(flash_forward_args_t, checked, args));
    flash_pages_t pages;
    set_default_types(checked);
    set_default_d_head_v(checked);
    FLASH_TRY(check_shape(checked));
    FLASH_TRY(arguments_read_paging(checked, &pages));
    set_problem(problem, checked, &pages);
    FLASH_TRY(arguments_check_latent(problem->dtype, &problem->params));
    FLASH_TRY(arguments_check_quant_blocks(problem->dtype, &problem->params));
    FLASH_TRY(arguments_read_quant(checked, &problem->params));
    FLASH_TRY(arguments_check_device_of_page_scales(checked));
    FLASH_TRY(arguments_read_bias(checked, &problem->params));
    if (arguments_have_bias(&problem->params))
        problem->features |= FLASH_FEATURE_BIAS;
    FLASH_TRY(arguments_read_dropout(checked, &problem->params));
    if (flash_drops(&problem->params.dropout))
        problem->features |= FLASH_FEATURE_DROPOUT;
    return arguments_read_executor(checked->executor, &problem->executor);
}
