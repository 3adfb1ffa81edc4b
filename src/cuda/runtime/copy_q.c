/*
 * A call whose Q is of fp32 first enqueues a kernel that copies it, in the type of K and V, to the
 * begin of the workspace, and then the problem's kernel, which has the rest of the workspace.
 */
#include "kernels/common/copy_q.h"

#include "config/kernel_table.h"
#include "core/int64.h"
#include "core/status.h"
#include "cuda/runtime/error.h"
#include "cuda/runtime/grid.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/scope.h"

typedef void copy_q_kernel_t(copy_q_params_t);

static const void *symbol_for(int32_t dtype) {
    union {
        copy_q_kernel_t *function;
        const void *symbol;
    } u = {.function = dtype == FLASH_DTYPE_BF16 ? flash_copy_q_bf16 : flash_copy_q_fp16};
    return u.symbol;
}

/* ---- The workspace ---- */

/* How many queries a ragged batch has, only the device knows. */
static uint64_t most_tokens(const flash_params_t *p) {
    return (uint64_t)p->batch * (uint64_t)p->seqlen_q;
}

static uint64_t copy_bytes(const flash_params_t *p) {
    const uint64_t token = (uint64_t)p->q_stride.seq * sizeof(uint16_t);
    return saturating_add(saturating_multiply(most_tokens(p), token), COPY_Q_ALIGNMENT);
}

static flash_status_t workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                const device_t *device, uint64_t *size) {
    FLASH_TRY(kernel_calls(kernel)->workspace(kernel, problem, device, size));
    *size = saturating_add(*size, copy_bytes(&problem->params));
    return FLASH_SUCCESS;
}

static flash_status_t check_workspace(const flash_kernel_t *kernel, const problem_t *problem,
                                      const device_t *device) {
    uint64_t size;
    FLASH_TRY(workspace(kernel, problem, device, &size));
    return cuda_require_workspace(kernel, problem, size);
}

/* Makes the problem whose Q is the copy. The workspace has been checked. */
static problem_t problem_of_copy(const problem_t *problem) {
    problem_t copied = *problem;
    const uintptr_t begin = (uintptr_t)problem->workspace;
    const uint64_t bytes = copy_bytes(&problem->params);
    const uint64_t unaligned = begin % COPY_Q_ALIGNMENT;
    char *workspace = problem->workspace;
    copied.params.q = workspace + (unaligned == 0 ? 0 : COPY_Q_ALIGNMENT - unaligned);
    copied.workspace = workspace + bytes;
    copied.workspace_size -= bytes;
    return copied;
}

/* ---- The kernel ---- */

static bool is_aligned(const wide_q_t *q) {
    enum { VECTOR_BYTES = 16, VECTOR_FLOATS = VECTOR_BYTES / sizeof(float) };
    const uint64_t strides =
        (uint64_t)q->stride.batch | (uint64_t)q->stride.seq | (uint64_t)q->stride.head;
    return (uintptr_t)q->data % VECTOR_BYTES == 0 && strides % VECTOR_FLOATS == 0;
}

/* Says whether the tokens of all sequences lie one stride after the other. */
static bool is_dense(const flash_params_t *p, const flash_strides_t *stride) {
    return p->cu_seqlens_q != NULL || p->batch == 1 ||
           stride->batch == (int64_t)p->seqlen_q * stride->seq;
}

static copy_q_params_t params_of(const problem_t *problem) {
    const flash_params_t *p = &problem->params;
    const int64_t row_vectors = copy_q_row(p->d_head) / COPY_Q_VECTOR;
    return (copy_q_params_t){.from = problem->wide_q.data,
                             .to = (void *)(uintptr_t)p->q,
                             .from_stride = problem->wide_q.stride,
                             .to_stride = p->q_stride,
                             .cu_seqlens_q = p->cu_seqlens_q,
                             .n_tokens = (int64_t)most_tokens(p),
                             .seqlen_q = p->seqlen_q,
                             .batch = p->batch,
                             .n_heads = p->n_heads,
                             .block_heads =
                                 (int32_t)min64(max64(COPY_Q_THREADS / row_vectors, 1), p->n_heads),
                             .d_head = p->d_head,
                             .row_vectors = (int32_t)row_vectors,
                             .is_aligned = is_aligned(&problem->wide_q),
                             .is_dense = is_dense(p, &problem->wide_q.stride)};
}

static flash_status_t enqueue(const problem_t *problem, flash_stream_t stream) {
    enum { MOST_BLOCKS = 1 << 20 }; /* with more tokens, each block takes several in turn */
    const copy_q_params_t params = params_of(problem);
    const cuda_grid_t grid = {.blocks = min64(params.n_tokens, MOST_BLOCKS),
                              .threads = params.block_heads * params.row_vectors};
    return launch_grid(symbol_for(problem->dtype), &grid, &params, stream);
}

static flash_status_t enqueue_on(const problem_t *problem, const device_t *device,
                                 flash_stream_t stream) {
    cuda_scope_t scope;
    FLASH_TRY(cuda_scope_enter(device, &scope));
    const flash_status_t status = enqueue(problem, stream);
    cuda_scope_leave(&scope);
    return status;
}

static flash_status_t launch(const flash_kernel_t *kernel, const problem_t *problem,
                             const device_t *device, flash_stream_t stream) {
    FLASH_TRY(check_workspace(kernel, problem, device));
    const problem_t copied = problem_of_copy(problem);
    FLASH_TRY(enqueue_on(&copied, device, stream));
    return kernel_calls(kernel)->launch(kernel, &copied, device, stream);
}

static flash_status_t load(int32_t dtype) {
    struct cudaFuncAttributes attributes;
    FLASH_TRY_CUDA(cudaFuncGetAttributes(&attributes, symbol_for(dtype)));
    return FLASH_SUCCESS;
}

static flash_status_t prepare(const flash_kernel_t *kernel, const problem_t *problem,
                              const device_t *device) {
    cuda_scope_t scope;
    FLASH_TRY(kernel_calls(kernel)->prepare(kernel, problem, device));
    FLASH_TRY(cuda_scope_enter(device, &scope));
    const flash_status_t status = load(problem->dtype);
    cuda_scope_leave(&scope);
    return status;
}

const family_calls_t copy_q_calls = {.workspace = workspace,
                                     .prepare = prepare,
                                     .check_workspace = check_workspace,
                                     .launch = launch};
