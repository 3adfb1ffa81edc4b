/*
 * flash_quantise() launches up to three kernels on CUDA devices: one that finds means, one that
 * finds the largest magnitude of each head, and one that quantises.
 */
#include "cuda/runtime/cuda_quantise.h"

#include "arguments/tensor.h"
#include "core/int64.h"
#include "core/status.h"
#include "cuda/runtime/error.h"
#include "cuda/runtime/grid.h"
#include "cuda/runtime/scope.h"
#include "kernels/common/dtype.h"
#include "kernels/common/quantise.h"

/* A launch has at most so many blocks; with more items, each takes several in turn. */
enum { MOST_BLOCKS = 1 << 20 };

/* A union converts the pointer of any kernel here, because C does not. */
typedef union kernel {
    void (*function)(quantise_params_t);
    const void *symbol;
} kernel_t;

/* The kernels for a type of x. */
typedef struct kernels {
    kernel_t mean, largest, heads, tokens;
} kernels_t;

#define KERNELS(TYPE)                                                                              \
    (kernels_t) {                                                                                  \
        {flash_quantise_mean_##TYPE}, {flash_quantise_largest_##TYPE},                             \
            {flash_quantise_heads_##TYPE}, {                                                       \
            flash_quantise_tokens_##TYPE                                                           \
        }                                                                                          \
    }

static kernels_t kernels_of(int32_t dtype) {
    DTYPES_KNOWN(7); /* x has no other type than these three */
    return dtype == FLASH_DTYPE_FP16   ? KERNELS(fp16)
           : dtype == FLASH_DTYPE_BF16 ? KERNELS(bf16)
                                       : KERNELS(fp32);
}

/* ---- Parameters ---- */

static flash_strides_t strides_of(const flash_tensor_t *tensor, const flash_quantise_args_t *a) {
    const int64_t shape[3] = {a->batch, a->seqlen, a->n_heads};
    return tensor_strides(tensor, a->cu_seqlens != NULL, shape);
}

/* Says whether rows consist of whole, aligned vectors of a thread's columns. */
static bool has_vectors(const void *data, const flash_strides_t *stride, int64_t size) {
    const int64_t vector = min64(QUANTISE_COLUMNS * size, 16);
    const int64_t bytes = (stride->batch | stride->seq | stride->head) * size;
    return (int64_t)((uintptr_t)data | (uintptr_t)bytes) % vector == 0;
}

/* Returns the threads of a row: as few as have all its columns at once, at most a warp. */
static int32_t lanes_of(int64_t d_head) {
    enum { WARP = 32 };
    int32_t lanes = 1;
    while (lanes < WARP && lanes * QUANTISE_COLUMNS < d_head)
        lanes *= 2;
    return lanes;
}

/* Returns the threads that share a row's columns in a block of means. A block has as few columns as
 * a sector of memory, so that there are many; more, where there are enough all the same. */
static int32_t mean_lanes_of(const flash_quantise_args_t *a, const device_t *device) {
    enum { SECTOR_BYTES = 32 };
    const int64_t heads = a->batch * a->n_heads;
    int32_t lanes = SECTOR_BYTES / QUANTISE_COLUMNS / dtype_size(a->x.dtype);
    while (lanes < QUANTISE_MOST_MEAN_LANES && lanes < lanes_of(a->d_head) &&
           heads * divide_up(a->d_head, 2 * lanes * QUANTISE_COLUMNS) >=
               2 * device->n_multiprocessors)
        lanes *= 2;
    return lanes;
}

static quantise_params_t params_of(const flash_quantise_args_t *a, const device_t *device) {
    const bool turns = (a->flags & FLASH_QUANTISE_HADAMARD) != 0;
    const int32_t turned = turns ? (int32_t)quantise_turned_columns(a->d_head) : 0;
    quantise_params_t p = {.x = a->x.data,
                           .codes = a->codes.data,
                           .scale = a->scale,
                           .mean = a->mean,
                           .cu_seqlens = a->cu_seqlens,
                           .x_stride = strides_of(&a->x, a),
                           .codes_stride = strides_of(&a->codes, a),
                           .batch = (int32_t)a->batch,
                           .seqlen = (int32_t)a->seqlen,
                           .n_heads = (int32_t)a->n_heads,
                           .n_scales = (int32_t)a->n_scales,
                           .d_head = (int32_t)a->d_head,
                           .n_chunks = (int32_t)max64(1, divide_up(a->seqlen, QUANTISE_CHUNK)),
                           .lanes = lanes_of(a->d_head),
                           .mean_lanes = mean_lanes_of(a, device),
                           .turned = turned,
                           .shrink = turned > 0 ? quantise_shrink(turned) : 1,
                           .by_token = (a->flags & FLASH_QUANTISE_TOKENS) != 0};
    p.is_aligned = a->d_head % QUANTISE_COLUMNS == 0 &&
                   has_vectors(p.x, &p.x_stride, dtype_size(a->x.dtype)) &&
                   has_vectors(p.codes, &p.codes_stride, 1);
    return p;
}

/* ---- Launches ---- */

/* Returns the threads of a block: whole warps, one thread for each of a row's lanes and each of two
 * tokens, as far as there are so many. */
static int32_t count_threads(int64_t n_tokens, int32_t lanes, int32_t most) {
    enum { WARP = 32, TOKENS = 2 };
    return (int32_t)min64(divide_up(divide_up(n_tokens, TOKENS) * lanes, WARP) * WARP, most);
}

static flash_status_t enqueue(kernel_t kernel, quantise_params_t params, int64_t n_parts,
                              int32_t threads, flash_stream_t stream) {
    params.n_items = (int64_t)params.batch * params.n_heads * n_parts;
    const cuda_grid_t grid = {.blocks = min64(params.n_items, MOST_BLOCKS), .threads = threads};
    return launch_grid(kernel.symbol, &grid, &params, stream);
}

/* Makes the places of scales 0, for the largest magnitudes; the kernel that finds means does that,
 * too. */
static flash_status_t begin_scales(const quantise_params_t *p, kernel_t mean,
                                   flash_stream_t stream) {
    const int64_t n_scales = (int64_t)p->batch * p->n_scales;
    if (p->mean != NULL)
        return enqueue(mean, *p, divide_up(p->d_head, p->mean_lanes * QUANTISE_COLUMNS),
                       count_threads(max64(p->seqlen, 1), p->mean_lanes, QUANTISE_MEAN_THREADS),
                       stream);
    if (!p->by_token)
        FLASH_TRY_CUDA(cudaMemsetAsync(p->scale, 0, (size_t)n_scales * sizeof(float), stream));
    return FLASH_SUCCESS;
}

static flash_status_t enqueue_all(const flash_quantise_args_t *a, const device_t *device,
                                  flash_stream_t stream) {
    const quantise_params_t p = params_of(a, device);
    const kernels_t kernels = kernels_of(a->x.dtype);
    const int64_t chunk = max64(1, min64(p.seqlen, QUANTISE_CHUNK));
    const int32_t threads = count_threads(chunk, p.lanes, QUANTISE_THREADS);
    if (a->batch == 0)
        return FLASH_SUCCESS;
    FLASH_TRY(begin_scales(&p, kernels.mean, stream));
    if (p.by_token)
        return enqueue(kernels.tokens, p, p.n_chunks, threads, stream);
    FLASH_TRY(enqueue(kernels.largest, p, p.n_chunks, threads, stream));
    return enqueue(kernels.heads, p, p.n_chunks, threads, stream);
}

flash_status_t cuda_quantise(const flash_quantise_args_t *args, const device_t *device,
                             flash_stream_t stream) {
    cuda_scope_t scope;
    FLASH_TRY(cuda_scope_enter(device, &scope));
    const flash_status_t status = enqueue_all(args, device, stream);
    cuda_scope_leave(&scope);
    return status;
}
