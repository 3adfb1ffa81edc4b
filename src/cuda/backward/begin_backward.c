#include "cuda/backward/begin_backward.h"

#include "core/int64.h"
#include "core/status.h"
#include "cuda/backward/plan_backward.h"
#include "cuda/runtime/error.h"
#include "cuda/runtime/grid.h"
#include "cuda/runtime/scope.h"
#include "kernels/common/dtype.h"

/* A launch has at most so many blocks; with more items, each takes several in turn. */
enum { MOST_BLOCKS = 1 << 20 };

/* A union converts the pointer of any kernel here, because C does not. */
typedef union kernel {
    void (*copies)(copy_q_params_t);
    void (*sums)(row_sums_params_t);
    void (*clears)(flash_backward_params_t);
    const void *symbol;
} kernel_t;

/* ---- Copies ---- */

static const void *copy_symbol(const backward_copy_t *copy) {
    const bool is_wide = copy->from.dtype == FLASH_DTYPE_FP32;
    const kernel_t kernel = {.copies = !is_wide                             ? flash_copy_halves
                                       : copy->to.dtype == FLASH_DTYPE_BF16 ? flash_copy_q_bf16
                                                                            : flash_copy_q_fp16};
    return kernel.symbol;
}

static flash_status_t enqueue_copy(const backward_copy_t *copy, const void *to, int32_t batch,
                                   flash_stream_t stream) {
    const copy_q_params_t params = plan_backward_copy(copy, to, batch);
    const cuda_grid_t grid = {.blocks = min64(params.n_tokens, MOST_BLOCKS),
                              .threads = params.block_heads * params.row_vectors};
    if (!copy->is_copied || params.n_tokens == 0)
        return FLASH_SUCCESS;
    return launch_grid(copy_symbol(copy), &grid, &params, stream);
}

static flash_status_t enqueue_copies(const backward_plan_t *plan, const problem_t *placed,
                                     flash_stream_t stream) {
    const void *const to[BACKWARD_N_INPUTS] = {[BACKWARD_Q] = placed->params.q,
                                               [BACKWARD_K] = placed->params.k,
                                               [BACKWARD_V] = placed->params.v,
                                               [BACKWARD_D_O] = placed->gradients.d_o};
    for (int i = 0; i < BACKWARD_N_INPUTS; i++)
        FLASH_TRY(enqueue_copy(&plan->copies[i], to[i], placed->params.batch, stream));
    return FLASH_SUCCESS;
}

/* ---- Rows ---- */

/* Says whether rows of O, too, consist of whole, aligned chunks. */
static bool has_aligned_o(const flash_params_t *p) {
    enum { CHUNK_BYTES = 16 };
    const uint64_t elements =
        (uint64_t)p->o_stride.batch | (uint64_t)p->o_stride.seq | (uint64_t)p->o_stride.head;
    return (uintptr_t)p->o % CHUNK_BYTES == 0 &&
           elements * (uint64_t)dtype_size(p->o_dtype) % CHUNK_BYTES == 0;
}

static flash_status_t enqueue_sums(const backward_plan_t *plan, const problem_t *placed,
                                   float *sink_sums, flash_stream_t stream) {
    const flash_params_t *p = &placed->params;
    const row_sums_params_t params = {.call = {placed->params, placed->gradients},
                                      .sink_sums = sink_sums,
                                      .n_places = plan->n_sink_places,
                                      .d_o_dtype = placed->dtype,
                                      .is_aligned = has_aligned_o(p)};
    const int64_t items = row_sums_blocks(p->seqlen_q) * p->n_heads * p->batch;
    const cuda_grid_t grid = {.blocks = min64(items, MOST_BLOCKS), .threads = ROW_SUMS_THREADS};
    const cuda_grid_t of_sinks = {.blocks = p->n_heads, .threads = ROW_SUMS_THREADS};
    const kernel_t sums = {.sums = flash_row_sums}, sinks = {.sums = flash_sink_sums};
    if (items > 0)
        FLASH_TRY(launch_grid(sums.symbol, &grid, &params, stream));
    if (sink_sums != NULL)
        FLASH_TRY(launch_grid(sinks.symbol, &of_sinks, &params, stream));
    return FLASH_SUCCESS;
}

static flash_status_t enqueue_clearing(const problem_t *placed, flash_stream_t stream) {
    const flash_params_t *p = &placed->params;
    const flash_backward_params_t params = {placed->params, placed->gradients};
    const int64_t tokens = max64(p->seqlen_q, p->seqlen_k) * p->batch;
    const cuda_grid_t grid = {.blocks = min64(tokens, MOST_BLOCKS), .threads = CLEAR_ROWS_THREADS};
    const kernel_t clears = {.clears = flash_clear_rows};
    if (tokens == 0 || !(p->seqused_q || p->seqused_k || p->leftpad_k))
        return FLASH_SUCCESS;
    return launch_grid(clears.symbol, &grid, &params, stream);
}

/* ---- The call ---- */

static flash_status_t enqueue(const backward_plan_t *plan, const problem_t *placed,
                              float *sink_sums, flash_stream_t stream) {
    FLASH_TRY(enqueue_copies(plan, placed, stream));
    FLASH_TRY(enqueue_sums(plan, placed, sink_sums, stream));
    return enqueue_clearing(placed, stream);
}

flash_status_t cuda_backward_begin(problem_t *problem, const device_t *device,
                                   flash_stream_t stream) {
    const backward_plan_t plan = plan_backward(problem);
    cuda_scope_t scope;
    float *sink_sums = plan_backward_place(&plan, problem);
    FLASH_TRY(cuda_scope_enter(device, &scope));
    const flash_status_t status = enqueue(&plan, problem, sink_sums, stream);
    cuda_scope_leave(&scope);
    return status;
}

static flash_status_t load(void) {
    const kernel_t kernels[] = {{.copies = flash_copy_q_fp16}, {.copies = flash_copy_q_bf16},
                                {.copies = flash_copy_halves}, {.sums = flash_row_sums},
                                {.sums = flash_sink_sums},     {.clears = flash_clear_rows}};
    struct cudaFuncAttributes attributes;
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++)
        FLASH_TRY_CUDA(cudaFuncGetAttributes(&attributes, kernels[i].symbol));
    return FLASH_SUCCESS;
}

flash_status_t cuda_backward_prepare(const device_t *device) {
    cuda_scope_t scope;
    FLASH_TRY(cuda_scope_enter(device, &scope));
    const flash_status_t status = load();
    cuda_scope_leave(&scope);
    return status;
}
