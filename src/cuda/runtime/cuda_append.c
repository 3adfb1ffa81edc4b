/*
 * flash_kv_append() launches one kernel on CUDA devices, or two where V has another head dimension
 * than K: the one that moves vectors wherever all rows lie at aligned addresses.
 */
#include "cuda/runtime/cuda_append.h"

#include "core/status.h"
#include "cuda/runtime/append_split.h"
#include "cuda/runtime/grid.h"
#include "cuda/runtime/scope.h"
#include "cuda/tuning.h"
#include "kernels/common/latent.h"

/* Says whether vectors of a tensor with these strides are aligned. */
static bool is_aligned(const void *data, const flash_strides_t *stride, int32_t dtype) {
    const int64_t size = dtype_size(dtype), vector = APPEND_VECTOR * size;
    const int64_t alignment = vector < 16 ? vector : 16;
    const int64_t places = (int64_t)((uintptr_t)data) | stride->batch * size | stride->seq * size |
                           stride->head * size;
    return places % alignment == 0;
}

static bool rotary_suits(const append_rotary_t *r, int32_t dtype) {
    const flash_strides_t stride = {.seq = r->stride_position};
    if (r->n_pairs == 0)
        return true;
    return (r->dtype == dtype || r->dtype == FLASH_DTYPE_FP32) && r->n_pairs % APPEND_VECTOR == 0 &&
           is_aligned(r->cos, &stride, r->dtype) && is_aligned(r->sin, &stride, r->dtype);
}

static bool is_vector_of(int32_t dtype, int32_t of) {
    return dtype == of || dtype == FLASH_DTYPE_E4M3;
}

/* Says whether the kernel that moves vectors of dtype serves a part: what is converted is of that
 * type or e4m3 before and after, and what is copied has at most 16 bits. */
static bool part_suits(const append_part_t *part, int32_t dtype) {
    const bool copied = !part->turns && part->from_dtype == part->to_dtype;
    if (part->n_heads == 0)
        return true;
    if (!copied && !(is_vector_of(part->from_dtype, dtype) && is_vector_of(part->to_dtype, dtype)))
        return false;
    return dtype_size(part->to_dtype) <= 2 &&
           is_aligned(part->from, &part->from_stride, part->from_dtype) &&
           is_aligned(part->to, &part->to_stride, part->to_dtype);
}

static bool vectors_suit(const append_params_t *p, int32_t dtype) {
    bool suits = p->d_head % APPEND_VECTOR == 0 && rotary_suits(&p->rotary, dtype);
    for (int i = 0; suits && i < APPEND_PARTS; i++)
        suits = part_suits(&p->parts[i], dtype);
    return suits;
}

static bool is_latent(const append_params_t *p) {
    return p->parts[APPEND_K].to_dtype == FLASH_DTYPE_LATENT_E4M3;
}

typedef void append_kernel_t(append_work_t);

/* Returns the kernel for a call, and how many elements it takes at once. */
static append_kernel_t *choose_kernel(const append_params_t *p, int32_t *vector) {
    *vector = APPEND_VECTOR;
    if (is_latent(p))
        return flash_append_latent;
    if (vectors_suit(p, FLASH_DTYPE_BF16))
        return flash_append_bf16;
    if (vectors_suit(p, FLASH_DTYPE_FP16))
        return flash_append_fp16;
    *vector = 1;
    return flash_append_elements;
}

/* A token is cut into several blocks only while there are few of them, since each block has to find
 * out where its token goes. */
static append_share_t share_of(int64_t n_tokens, int32_t token_units) {
    const int32_t most = (token_units + APPEND_THREADS - 1) / APPEND_THREADS;
    const int32_t token_blocks = n_tokens < APPEND_MANY_TOKENS && most > 0 ? most : 1;
    return (append_share_t){.n_blocks = token_units > 0 ? (uint32_t)(n_tokens * token_blocks) : 0,
                            .token_blocks = token_blocks,
                            .token_units = token_units};
}

/* A block has a head of a token. */
static append_work_t work_of_latent(const append_params_t *p) {
    const int64_t n_blocks = p->tokens_new.total * p->parts[APPEND_K].n_heads;
    return (append_work_t){.params = *p, .share_new = {.n_blocks = (uint32_t)n_blocks}};
}

static append_work_t work_of(const append_params_t *p, int32_t vector) {
    if (is_latent(p))
        return work_of_latent(p);
    const int32_t row_units = (p->d_head + 2 * vector - 1) / (2 * vector);
    const int32_t rows_new = p->parts[APPEND_K].n_heads + p->parts[APPEND_V].n_heads;
    return (append_work_t){.params = *p,
                           .share_new = share_of(p->tokens_new.total, rows_new * row_units),
                           .share_q =
                               share_of(p->tokens_q.total, p->parts[APPEND_Q].n_heads * row_units),
                           .row_units = row_units};
}

/* With more blocks than run at once, each takes several tokens in turn: it finds lengths and tables
 * in its cache then. */
static int64_t most_blocks(const device_t *device) {
    return (int64_t)APPEND_BLOCKS * device->n_multiprocessors;
}

static flash_status_t enqueue(const append_params_t *params, const device_t *device,
                              flash_stream_t stream) {
    int32_t vector;
    union {
        append_kernel_t *function;
        const void *symbol;
    } u = {.function = choose_kernel(params, &vector)};
    const append_work_t work = work_of(params, vector);
    const int64_t n = (int64_t)work.share_new.n_blocks + work.share_q.n_blocks;
    const int64_t most = most_blocks(device);
    const bool has_lengths = params->seqused_k_out != NULL && params->batch > 0;
    const cuda_grid_t grid = {.blocks = n > most                ? most
                                        : n == 0 && has_lengths ? 1
                                                                : n,
                              .threads = APPEND_THREADS};
    return grid.blocks == 0 ? FLASH_SUCCESS : launch_grid(u.symbol, &grid, &work, stream);
}

/* A kernel's rows all have the same length. */
static flash_status_t enqueue_all(const append_params_t *params, const device_t *device,
                                  flash_stream_t stream) {
    if (!append_is_split(params))
        return enqueue(params, device, stream);
    const append_params_t of_v = append_v_alone(params), rest = append_without_v(params);
    FLASH_TRY(enqueue(&of_v, device, stream));
    return enqueue(&rest, device, stream);
}

flash_status_t cuda_append(const append_params_t *params, const device_t *device,
                           flash_stream_t stream) {
    cuda_scope_t scope;
    FLASH_TRY(cuda_scope_enter(device, &scope));
    const flash_status_t status = enqueue_all(params, device, stream);
    cuda_scope_leave(&scope);
    return status;
}
