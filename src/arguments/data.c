/*
 * This file checks what a call's pointers lead to: lengths, tensors, and outputs apart from inputs.
 */
#include "arguments/data.h"

#include "arguments/bias_arguments.h"
#include "arguments/checks.h"
#include "arguments/dropout_arguments.h"
#include "arguments/gradients.h"
#include "arguments/lengths.h"
#include "arguments/paging.h"
#include "arguments/quant.h"
#include "arguments/regions.h"
#include "arguments/tensor.h"
#include "core/int64.h"
#include "core/status.h"
#include "kernels/common/key.h"
#include "kernels/common/sequence.h"

#include <inttypes.h>

/* ---- Lengths ---- */

/* The queries or the keys of a batch, and their names in messages. */
typedef struct side {
    const char *name;
    const char *tokens;
    const int32_t *cu_seqlens;
    int32_t seqlen;
} side_t;

/* Counts the tokens of a sequence, in 64 bits because another thread may change the lengths. */
static int64_t count_tokens(const side_t *side, int64_t b) {
    return side->cu_seqlens ? (int64_t)flash_load_length(side->cu_seqlens, b + 1) -
                                  flash_load_length(side->cu_seqlens, b)
                            : side->seqlen;
}

static flash_status_t check_seqused(const side_t *side, const int32_t *seqused, int32_t batch) {
    for (int32_t b = 0; b < batch; b++) {
        const int32_t used = flash_load_length(seqused, b);
        const int64_t most = count_tokens(side, b);
        FLASH_REQUIRE(used >= 0 && used <= most, FLASH_ERROR_INVALID_ARGUMENT,
                      "%s[%" PRId32 "] is %" PRId32 ": not within 0 ... %" PRId64
                      ", the %s of that sequence",
                      side->name, b, used, most, side->tokens);
    }
    return FLASH_SUCCESS;
}

/* Padding longer than a sequence leaves it no key. */
static flash_status_t check_leftpad(const int32_t *leftpad, int32_t batch) {
    for (int32_t b = 0; b < batch; b++) {
        const int32_t padding = flash_load_length(leftpad, b);
        FLASH_REQUIRE(padding >= 0, FLASH_ERROR_INVALID_ARGUMENT,
                      "leftpad_k[%" PRId32 "] is %" PRId32 ": negative", b, padding);
    }
    return FLASH_SUCCESS;
}

/* Keys in pages are no ragged tensor, whatever says how many they are. */
static bool has_ragged_keys(const flash_params_t *p) {
    return p->cu_seqlens_k != NULL && p->pages.page_size == 0;
}

/* Checks the lengths in host memory. *total_q and *total_k become the tokens of ragged tensors. */
static flash_status_t check_lengths(const flash_params_t *p, int64_t *total_q, int64_t *total_k) {
    if (p->cu_seqlens_q)
        FLASH_TRY(lengths_check_cu_seqlens("cu_seqlens_q", p->cu_seqlens_q, p->batch, p->seqlen_q,
                                           total_q));
    int64_t keys;
    if (p->cu_seqlens_k)
        FLASH_TRY(lengths_check_cu_seqlens("cu_seqlens_k", p->cu_seqlens_k, p->batch, p->seqlen_k,
                                           has_ragged_keys(p) ? total_k : &keys));
    const side_t q = {"seqused_q", "queries", p->cu_seqlens_q, p->seqlen_q};
    const side_t k = {"seqused_k", "keys", p->cu_seqlens_k, p->seqlen_k};
    if (p->seqused_q)
        FLASH_TRY(check_seqused(&q, p->seqused_q, p->batch));
    if (p->seqused_k)
        FLASH_TRY(check_seqused(&k, p->seqused_k, p->batch));
    return p->leftpad_k ? check_leftpad(p->leftpad_k, p->batch) : FLASH_SUCCESS;
}

/* ---- Tensors ---- */

static flash_status_t check_tensor_alignment(const char *name, const flash_tensor_t *tensor) {
    return argument_check_alignment(name, tensor->data, dtype_size(tensor->dtype));
}

static flash_status_t check_alignments(const flash_forward_args_t *a, const flash_params_t *p) {
    FLASH_TRY(check_tensor_alignment("q.data", &a->q));
    FLASH_TRY(check_tensor_alignment("k.data", &a->k));
    FLASH_TRY(check_tensor_alignment("v.data", &a->v));
    FLASH_TRY(check_tensor_alignment("o.data", &a->o));
    FLASH_TRY(argument_check_alignment("lse", a->lse, sizeof *a->lse));
    FLASH_TRY(argument_check_alignment("cu_seqlens_q", a->cu_seqlens_q, sizeof *a->cu_seqlens_q));
    FLASH_TRY(argument_check_alignment("cu_seqlens_k", a->cu_seqlens_k, sizeof *a->cu_seqlens_k));
    FLASH_TRY(argument_check_alignment("seqused_q", a->seqused_q, sizeof *a->seqused_q));
    FLASH_TRY(argument_check_alignment("seqused_k", a->seqused_k, sizeof *a->seqused_k));
    FLASH_TRY(argument_check_alignment("leftpad_k", a->leftpad_k, sizeof *a->leftpad_k));
    FLASH_TRY(arguments_check_page_alignments(&p->pages));
    FLASH_TRY(argument_check_alignment("sinks", a->sinks, sizeof *a->sinks));
    FLASH_TRY(arguments_check_bias_alignments(p));
    FLASH_TRY(arguments_check_dropout_alignments(p));
    return arguments_check_scale_alignments(p);
}

static flash_status_t check_lse_stride(const char *name, int64_t stride) {
    FLASH_REQUIRE(stride >= 0, FLASH_ERROR_INVALID_ARGUMENT, "%s is %" PRId64 ": negative", name,
                  stride);
    return FLASH_SUCCESS;
}

/* Checks LSE, if it is given, and adds it to the call's regions. */
static flash_status_t check_lse(const flash_forward_args_t *a, const flash_params_t *p,
                                const data_shapes_t *s, regions_t *regions) {
    const flash_tensor_t lse = tensor_of_rows(a->lse, &p->lse_stride, &s->q);
    const tensor_shape_t shape = tensor_shape_of_rows(&s->o);
    if (a->lse == NULL)
        return FLASH_SUCCESS;
    if (a->cu_seqlens_q == NULL)
        FLASH_TRY(check_lse_stride("lse_stride_batch", a->lse_stride_batch));
    FLASH_TRY(check_lse_stride("lse_stride_head", a->lse_stride_head));
    FLASH_TRY(check_lse_stride("lse_stride_seq", a->lse_stride_seq));
    FLASH_TRY(tensor_check("lse", &lse, &shape));
    if (shape.is_output)
        FLASH_TRY(tensor_check_output("lse", &lse, &shape));
    regions_add(regions, "lse", &lse, &shape);
    return FLASH_SUCCESS;
}

/* Returns the ids that a page table in host memory has, as far as sequences with keys need it. */
static int64_t known_ids(const problem_t *problem) {
    const flash_pages_t *pages = &problem->params.pages;
    return pages->indptr ? problem->page_limits.ids
                         : problem->page_limits.rows * pages->table_stride;
}

/* Adds what is neither a tensor nor beside one: lengths, where keys lie, sinks, dropout. */
static void add_arrays(const flash_forward_args_t *a, const problem_t *problem,
                       regions_t *regions) {
    const int64_t size = sizeof(int32_t);
    regions_add_array(regions, "cu_seqlens_q", a->cu_seqlens_q, a->batch + 1, size);
    regions_add_array(regions, "cu_seqlens_k", a->cu_seqlens_k, a->batch + 1, size);
    regions_add_array(regions, "seqused_q", a->seqused_q, a->batch, size);
    regions_add_array(regions, "seqused_k", a->seqused_k, a->batch, size);
    regions_add_array(regions, "leftpad_k", a->leftpad_k, a->batch, size);
    regions_add_array(regions, "sinks", a->sinks, a->n_heads, sizeof *a->sinks);
    arguments_add_dropout(&problem->params, regions);
    arguments_add_pages(&problem->params.pages, a->batch, known_ids(problem), regions);
}

/* The tokens along a sequence axis, as far as the host knows, and those of the longest sequence. */
typedef struct tokens {
    int64_t known;
    int64_t longest;
} tokens_t;

static data_shapes_t shapes_of(const flash_forward_args_t *a, const flash_params_t *p,
                               tokens_t q_tokens, tokens_t k_tokens) {
    data_shapes_t s = {.q = {.batch = a->cu_seqlens_q ? 1 : a->batch,
                             .seq = q_tokens.known,
                             .longest_seq = q_tokens.longest,
                             .heads = a->n_heads,
                             .d_head = a->d_head,
                             .element_size = dtype_size(a->q.dtype),
                             .may_repeat = (a->flags & FLASH_FLAG_BROADCAST) != 0}};
    s.k = s.o = s.q;
    s.k.batch = p->pages.page_size > 0 ? p->pages.n_pages : a->cu_seqlens_k ? 1 : a->batch;
    s.k.seq = k_tokens.known;
    s.k.longest_seq = k_tokens.longest;
    s.k.heads = a->n_heads_kv;
    s.k.d_head = key_elements(a->k.dtype, a->d_head);
    s.k.element_size = dtype_size(a->k.dtype);
    s.v = s.k;
    s.v.d_head = key_elements(a->v.dtype, a->d_head_v);
    s.v.element_size = dtype_size(a->v.dtype);
    s.o.d_head = a->d_head_v;
    s.o.element_size = dtype_size(a->o.dtype);
    return s;
}

/* Adds the call's working memory, which it writes, as much of it as there are addresses for. */
static void add_workspace(const problem_t *problem, regions_t *regions) {
    const uint64_t most = min_u64(UINTPTR_MAX - (uintptr_t)problem->workspace, INT64_MAX);
    const int64_t size = (int64_t)min_u64(problem->workspace_size, most);
    regions_add_output_array(regions, "workspace", problem->workspace, size, 1);
}

/* Outputs must be apart from all inputs, because kernels read Q again after O has been written, and
 * tasks read everything else while others write outputs. To a backward call O and LSE are inputs;
 * a forward call has no `backward`. */
static flash_status_t check_tensors(const flash_forward_args_t *a,
                                    const flash_backward_args_t *backward, const problem_t *problem,
                                    tokens_t q_tokens, tokens_t k_tokens) {
    const flash_params_t *p = &problem->params;
    data_shapes_t s = shapes_of(a, p, q_tokens, k_tokens);
    regions_t regions = {.n = 0};
    s.o.is_output = backward == NULL;
    FLASH_TRY(tensor_check("q", &a->q, &s.q));
    FLASH_TRY(tensor_check("k", &a->k, &s.k));
    FLASH_TRY(tensor_check("v", &a->v, &s.v));
    FLASH_TRY(tensor_check("o", &a->o, &s.o));
    if (s.o.is_output)
        FLASH_TRY(tensor_check_output("o", &a->o, &s.o));
    regions_add(&regions, "o", &a->o, &s.o);
    regions_add(&regions, "q", &a->q, &s.q);
    regions_add(&regions, "k", &a->k, &s.k);
    regions_add(&regions, "v", &a->v, &s.v);
    FLASH_TRY(check_lse(a, p, &s, &regions));
    FLASH_TRY(arguments_check_scales(p, &regions));
    FLASH_TRY(arguments_check_q_scales(p, &s.q, &regions));
    FLASH_TRY(arguments_check_bias(p, s.q.seq, &regions));
    add_arrays(a, problem, &regions);
    if (backward)
        FLASH_TRY(arguments_check_gradients(backward, &problem->gradients, &s, &regions));
    add_workspace(problem, &regions);
    return regions_check(&regions);
}

/* Counts the tokens of a tensor whose lengths are not in host memory. For a ragged one the number
 * is not known, but it has some if its sequences may. */
static int64_t known_tokens(bool is_ragged, int32_t seqlen) {
    return is_ragged && seqlen > 1 ? 1 : seqlen;
}

/* A ragged tensor of one token has no stride along tokens, like any axis of length 1. */
static void drop_unused_strides(flash_params_t *p, int64_t total_q, int64_t total_k) {
    if (p->cu_seqlens_q && total_q <= 1)
        p->q_stride.seq = p->o_stride.seq = 0;
    if (has_ragged_keys(p) && total_k <= 1)
        p->k_stride.seq = p->v_stride.seq = 0;
}

static flash_status_t check_data(const flash_forward_args_t *checked,
                                 const flash_backward_args_t *backward, bool on_host,
                                 problem_t *problem) {
    const flash_params_t *p = &problem->params;
    int64_t total_q = known_tokens(p->cu_seqlens_q != NULL, p->seqlen_q);
    const int32_t longest_k = p->pages.page_size > 0 ? p->pages.page_size : p->seqlen_k;
    int64_t total_k = known_tokens(has_ragged_keys(p), longest_k);
    if (on_host)
        FLASH_TRY(check_lengths(p, &total_q, &total_k));
    else
        FLASH_TRY(check_alignments(checked, p));
    if (on_host && p->pages.page_size > 0)
        FLASH_TRY(arguments_check_pages(p, &problem->page_limits));
    FLASH_TRY(check_tensors(checked, backward, problem, (tokens_t){total_q, p->seqlen_q},
                            (tokens_t){total_k, longest_k}));
    if (on_host)
        drop_unused_strides(&problem->params, total_q, total_k);
    problem->total_q = total_q;
    problem->total_k = total_k;
    return FLASH_SUCCESS;
}

flash_status_t arguments_check_data(const flash_forward_args_t *checked, bool on_host,
                                    problem_t *problem) {
    FLASH_TRY(check_data(checked, NULL, on_host, problem));
    problem->has_output = problem->has_output && problem->total_q > 0;
    return FLASH_SUCCESS;
}

flash_status_t arguments_check_backward_data(const flash_backward_args_t *checked, bool on_host,
                                             problem_t *problem) {
    FLASH_TRY(check_data(checked->forward, checked, on_host, problem));
    return on_host ? arguments_check_totals(checked, problem) : FLASH_SUCCESS;
}
