#include "cuda/backward/plan_backward.h"

#include "core/int64.h"
#include "kernels/common/dtype.h"

#include <stddef.h>

enum { PLACE_ALIGNMENT = 256, CHUNK_BYTES = 16 };

/* ---- Sizes ---- */

static uint64_t whole_places(uint64_t size) {
    const uint64_t more = saturating_add(size, PLACE_ALIGNMENT - 1);
    return more == UINT64_MAX ? more : more / PLACE_ALIGNMENT * PLACE_ALIGNMENT;
}

/* Returns the place of a part of so many bytes, and moves the end behind it. */
static uint64_t take(uint64_t *end, uint64_t size) {
    const uint64_t place = *end;
    *end = saturating_add(place, whole_places(size));
    return place;
}

static uint64_t bytes_of(int64_t a, int64_t b, uint64_t size) {
    return saturating_multiply(saturating_multiply((uint64_t)a, (uint64_t)b), size);
}

/* ---- Copies ---- */

static bool is_chunks(const backward_tensor_t *x, int32_t d_head) {
    const uint64_t elements = (uint64_t)x->stride.batch | (uint64_t)x->stride.seq |
                              (uint64_t)x->stride.head | (uint64_t)d_head;
    const uint64_t of_chunk = CHUNK_BYTES / (uint64_t)dtype_size(x->dtype);
    return (uintptr_t)x->data % CHUNK_BYTES == 0 && elements % of_chunk == 0;
}

/* The copy is contiguous, but for rows that are filled up to whole chunks. */
static flash_strides_t dense_strides(const backward_copy_t *copy) {
    const int64_t row = copy_q_row(copy->d_head), token = row * copy->n_heads;
    return (flash_strides_t){copy->cu_seqlens ? 0 : token * copy->seqlen, token, row};
}

static backward_copy_t copy_of_queries(const problem_t *problem, backward_tensor_t from,
                                       int32_t d_head) {
    const flash_params_t *p = &problem->params;
    return (backward_copy_t){.from = from,
                             .cu_seqlens = p->cu_seqlens_q,
                             .n_tokens = problem->gradients.n_rows,
                             .seqlen = p->seqlen_q,
                             .n_heads = p->n_heads,
                             .d_head = d_head};
}

static backward_copy_t copy_of_keys(const problem_t *problem, backward_tensor_t from,
                                    int32_t d_head) {
    const flash_params_t *p = &problem->params;
    return (backward_copy_t){.from = from,
                             .cu_seqlens = p->cu_seqlens_k,
                             .n_tokens = problem->gradients.n_keys,
                             .seqlen = p->seqlen_k,
                             .n_heads = p->n_heads_kv,
                             .d_head = d_head};
}

/* Returns Q as the caller has it. */
static backward_tensor_t callers_q(const problem_t *problem) {
    const flash_params_t *p = &problem->params;
    return problem->wide_q.is_copied
               ? (backward_tensor_t){problem->wide_q.data, problem->wide_q.stride, FLASH_DTYPE_FP32}
               : (backward_tensor_t){p->q, p->q_stride, p->q_dtype};
}

static void set_copies(backward_plan_t *plan, const problem_t *problem) {
    const flash_params_t *p = &problem->params;
    const flash_gradients_t *g = &problem->gradients;
    const backward_tensor_t k = {p->k, p->k_stride, problem->dtype};
    const backward_tensor_t v = {p->v, p->v_stride, problem->dtype};
    const backward_tensor_t d_o = {g->d_o, g->d_o_stride, p->o_dtype};
    plan->copies[BACKWARD_Q] = copy_of_queries(problem, callers_q(problem), p->d_head);
    plan->copies[BACKWARD_K] = copy_of_keys(problem, k, p->d_head);
    plan->copies[BACKWARD_V] = copy_of_keys(problem, v, p->d_head_v);
    plan->copies[BACKWARD_D_O] = copy_of_queries(problem, d_o, p->d_head_v);
}

static void place_copies(backward_plan_t *plan, const problem_t *problem, uint64_t *end) {
    for (int i = 0; i < BACKWARD_N_INPUTS; i++) {
        backward_copy_t *copy = &plan->copies[i];
        copy->is_copied =
            copy->from.dtype != problem->dtype || !is_chunks(&copy->from, copy->d_head);
        copy->to = copy->is_copied ? (backward_tensor_t){NULL, dense_strides(copy), problem->dtype}
                                   : copy->from;
        if (copy->is_copied)
            copy->at = take(end, bytes_of(copy->n_tokens, copy->to.stride.seq, sizeof(uint16_t)));
    }
}

/* ---- The plan ---- */

backward_plan_t plan_backward(const problem_t *problem) {
    const flash_params_t *p = &problem->params;
    const uint64_t rows = bytes_of(problem->gradients.n_rows, p->n_heads, sizeof(float));
    backward_plan_t plan = {.n_sink_places = row_sums_places(problem->gradients.n_rows, p->batch)};
    uint64_t end = 0;
    plan.row_d = take(&end, rows);
    plan.row_log_sum = take(&end, rows);
    if (problem->gradients.d_sinks)
        plan.sink_sums = take(&end, bytes_of(plan.n_sink_places, p->n_heads, sizeof(float)));
    set_copies(&plan, problem);
    place_copies(&plan, problem, &end);
    plan.rest = end;
    plan.size = saturating_add(end, PLACE_ALIGNMENT - 1);
    return plan;
}

uint64_t plan_backward_size(const problem_t *problem) {
    return plan_backward(problem).size;
}

static void *place(char *begin, uint64_t at) {
    return begin + at;
}

static void set_inputs(problem_t *problem, const backward_tensor_t inputs[BACKWARD_N_INPUTS]) {
    flash_params_t *p = &problem->params;
    p->q = inputs[BACKWARD_Q].data;
    p->q_stride = inputs[BACKWARD_Q].stride;
    p->q_dtype = inputs[BACKWARD_Q].dtype;
    p->k = inputs[BACKWARD_K].data;
    p->k_stride = inputs[BACKWARD_K].stride;
    p->v = inputs[BACKWARD_V].data;
    p->v_stride = inputs[BACKWARD_V].stride;
    problem->gradients.d_o = inputs[BACKWARD_D_O].data;
    problem->gradients.d_o_stride = inputs[BACKWARD_D_O].stride;
    problem->wide_q.is_copied = false;
}

float *plan_backward_place(const backward_plan_t *plan, problem_t *problem) {
    const uintptr_t unaligned = (uintptr_t)problem->workspace % PLACE_ALIGNMENT;
    const uint64_t skipped = unaligned == 0 ? 0 : PLACE_ALIGNMENT - unaligned;
    char *begin = (char *)problem->workspace + skipped;
    backward_tensor_t inputs[BACKWARD_N_INPUTS];
    for (int i = 0; i < BACKWARD_N_INPUTS; i++) {
        inputs[i] = plan->copies[i].to;
        if (plan->copies[i].is_copied)
            inputs[i].data = place(begin, plan->copies[i].at);
    }
    set_inputs(problem, inputs);
    problem->gradients.section =
        (flash_section_t){0, problem->params.batch, 0, problem->params.n_heads_kv};
    problem->gradients.row_d = place(begin, plan->row_d);
    problem->gradients.row_log_sum = place(begin, plan->row_log_sum);
    problem->workspace = begin + plan->rest;
    problem->workspace_size -= skipped + plan->rest;
    return problem->gradients.d_sinks ? place(begin, plan->sink_sums) : NULL;
}

/* Says whether the tokens of all sequences lie one stride after the other. */
static bool is_dense(const backward_copy_t *copy, int32_t batch) {
    return copy->cu_seqlens != NULL || batch == 1 ||
           copy->from.stride.batch == (int64_t)copy->seqlen * copy->from.stride.seq;
}

/* Says whether vectors of a row that are whole are aligned. */
static bool is_aligned(const backward_tensor_t *from) {
    return is_chunks(from, 0);
}

copy_q_params_t plan_backward_copy(const backward_copy_t *copy, const void *to, int32_t batch) {
    const int64_t row_vectors = copy_q_row(copy->d_head) / COPY_Q_VECTOR;
    return (copy_q_params_t){
        .from = copy->from.data,
        .to = (void *)(uintptr_t)to,
        .from_stride = copy->from.stride,
        .to_stride = copy->to.stride,
        .cu_seqlens_q = copy->cu_seqlens,
        .n_tokens = copy->n_tokens,
        .seqlen_q = copy->seqlen,
        .batch = batch,
        .n_heads = copy->n_heads,
        .block_heads = (int32_t)min64(max64(COPY_Q_THREADS / row_vectors, 1), copy->n_heads),
        .d_head = copy->d_head,
        .row_vectors = (int32_t)row_vectors,
        .is_aligned = is_aligned(&copy->from),
        .is_dense = is_dense(copy, batch)};
}
