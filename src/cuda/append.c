/*
 * flash_kv_append() launches one kernel on CUDA devices: the one that moves vectors wherever all
 * rows lie at aligned addresses.
 */
#include "cuda/append.h"

#include "core/status.h"
#include "cuda/grid.h"
#include "cuda/scope.h"
#include "kernels/common/dtype.h"

/* Says whether vectors of a tensor with these strides are aligned. */
static bool is_aligned(const void *data, const flash_strides_t *stride, int32_t dtype) {
    const int64_t size = dtype_size(dtype), vector = APPEND_VECTOR * size;
    const int64_t alignment = vector < 16 ? vector : 16;
    const int64_t places = (int64_t)((uintptr_t)data) | stride->batch * size | stride->seq * size |
                           stride->head * size;
    return places % alignment == 0;
}

static bool rotary_is_aligned(const append_rotary_t *r) {
    const flash_strides_t stride = {.seq = r->stride_position};
    return r->n_pairs % APPEND_VECTOR == 0 && is_aligned(r->cos, &stride, r->dtype) &&
           is_aligned(r->sin, &stride, r->dtype);
}

static bool takes_vectors(const append_params_t *p) {
    if (p->d_head % APPEND_VECTOR != 0 || (p->rotary.n_pairs > 0 && !rotary_is_aligned(&p->rotary)))
        return false;
    for (int i = 0; i < APPEND_PARTS; i++) {
        const append_part_t *part = &p->parts[i];
        if (part->n_heads > 0 && !(is_aligned(part->from, &part->from_stride, part->from_dtype) &&
                                   is_aligned(part->to, &part->to_stride, part->to_dtype)))
            return false;
    }
    return true;
}

static append_work_t work_of(const append_params_t *p, int32_t vector) {
    append_work_t work = {.params = *p, .row_units = (p->d_head + 2 * vector - 1) / (2 * vector)};
    const int32_t rows_new = p->parts[APPEND_K].n_heads + p->parts[APPEND_V].n_heads;
    const int32_t rows_q = p->parts[APPEND_Q].n_heads;
    work.token_units_new = rows_new * work.row_units;
    work.token_units_q = rows_q > 0 ? rows_q * work.row_units : 1;
    work.n_units_new = p->tokens_new.total * work.token_units_new;
    work.n_units = work.n_units_new + p->tokens_q.total * work.token_units_q;
    return work;
}

static flash_status_t enqueue(const append_params_t *params, flash_stream_t stream) {
    enum { MOST_BLOCKS = 1 << 24 }; /* with more units, each thread takes several in turn */
    const bool vectors = takes_vectors(params);
    const append_work_t work = work_of(params, vectors ? APPEND_VECTOR : 1);
    union {
        void (*function)(append_work_t);
        const void *symbol;
    } u = {.function = vectors ? flash_append_vectors : flash_append_elements};
    const int64_t n_lengths = params->seqused_k_out != NULL ? params->batch : 0;
    const int64_t threads = work.n_units > n_lengths ? work.n_units : n_lengths;
    const int64_t blocks = (threads + APPEND_THREADS - 1) / APPEND_THREADS;
    const cuda_grid_t grid = {.blocks = blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS,
                              .threads = APPEND_THREADS};
    return blocks == 0 ? FLASH_SUCCESS : launch_grid(u.symbol, &grid, &work, stream);
}

flash_status_t cuda_append(const append_params_t *params, const device_t *device,
                           flash_stream_t stream) {
    cuda_scope_t scope;
    FLASH_TRY(cuda_scope_enter(device, &scope));
    const flash_status_t status = enqueue(params, stream);
    cuda_scope_leave(&scope);
    return status;
}
