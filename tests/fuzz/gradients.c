/*
 * This file makes calls for gradients.
 */
#include "gradients.h"

#include "check.h"

#include <string.h>

enum { N_TENSORS = 4, PLENTY = 8 /* choices of a byte, of which one is rare */ };

/* ---- Arguments ---- */

static int64_t d_head_v(const flash_forward_args_t *f) {
    return f->d_head_v == 0 ? f->d_head : f->d_head_v;
}

static flash_tensor_t take_typed(input_t *in, int64_t seqlen, int64_t heads, int64_t row) {
    flash_tensor_t tensor = take_tensor(in, seqlen, heads, row);
    const uint8_t kind = take_byte(in) % PLENTY;
    tensor.dtype = kind == 0 ? take_any_dtype(in) : kind < 3 ? FLASH_DTYPE_FP32 : 0;
    return tensor;
}

/* A call of any struct_size and pointers to what is not there yet: data that counts is not NULL. */
flash_backward_args_t take_backward(input_t *in, const flash_forward_args_t *f) {
    static float some;
    flash_backward_args_t a = FLASH_BACKWARD_ARGS_INIT;
    const uint8_t given = take_byte(in);
    if (take_byte(in) == 255)
        a.struct_size = take_byte(in);
    a.forward = take_byte(in) == 255 ? NULL : f;
    a.flags = take_byte(in) < 200 ? 0 : (uint32_t)take_number(in, 7);
    a.d_o = take_typed(in, f->seqlen_q, f->n_heads, d_head_v(f));
    a.dq = take_typed(in, f->seqlen_q, f->n_heads, f->d_head);
    a.dk = take_typed(in, f->seqlen_k, f->n_heads_kv, f->d_head);
    a.dv = take_typed(in, f->seqlen_k, f->n_heads_kv, d_head_v(f));
    a.d_o.data = &some;
    a.dq.data = given & 1 ? &some : NULL;
    a.dk.data = given & 2 ? &some : NULL;
    a.dv.data = given & 4 ? &some : NULL;
    a.d_sinks = given & 8 ? &some : NULL;
    a.d_lse = given & 16 ? &some : NULL;
    if (given & 32) {
        const flash_tensor_t strides = take_tensor(in, f->seqlen_q, f->n_heads, 1);
        a.d_lse_stride_batch = strides.stride_batch;
        a.d_lse_stride_head = strides.stride_head;
        a.d_lse_stride_seq = strides.stride_seq;
    }
    if (given & 64) {
        a.total_q = take_number(in, 60);
        a.total_k = take_number(in, 60);
    }
    if (take_byte(in) == 255)
        a.dq_kernel = a.dkv_kernel = flash_kernel_at(take_byte(in) % flash_kernel_count());
    if (take_byte(in) == 255)
        take(in, a.reserved, sizeof a.reserved);
    return a;
}

/* ---- Calls that read no data ---- */

void check_backward_shape_calls(const flash_backward_args_t *a) {
    const flash_kernel_t *dq = NULL, *dkv = NULL;
    char reason[64];
    uint64_t least = 0, best = 0;
    const flash_status_t status = flash_backward_query_support(a, reason, sizeof reason);
    CHECK(flash_backward_workspace_size(a, &least, &best) == status);
    CHECK(flash_backward_select_kernels(a, &dq, &dkv, reason, sizeof reason) == status);
    if (status == FLASH_SUCCESS)
        CHECK(least <= best && dq != NULL && dkv != NULL);
    else
        CHECK(strcmp(flash_last_error(), "") != 0);
}

/* ---- flash_backward() ---- */

/* A tensor of the call, its sizes, and the elements of its rows. */
typedef struct part {
    flash_tensor_t *tensor;
    const int64_t *sizes;
    int64_t row;
    int32_t dtype; /* where the tensor names none */
} part_t;

static int32_t type_or(int32_t dtype, int32_t otherwise) {
    return dtype != 0 ? dtype : otherwise;
}

/* Gives a tensor memory if it is wanted. Returns false if it would be too much. */
static bool allocate(part_t *part, uint8_t value) {
    int64_t elements;
    if (!get_extent(part->tensor, part->sizes, part->row, 0, 1, &elements))
        return false;
    if (part->tensor->data != NULL)
        part->tensor->data =
            filled(elements * element_size(part->dtype, part->tensor->dtype), value);
    return true;
}

/* LSE is contiguous, and its gradient like it where that has no strides. */
static bool allocate_d_lse(flash_backward_args_t *a, const int64_t sizes[3]) {
    flash_tensor_t rows = {.stride_batch = a->d_lse_stride_batch,
                           .stride_seq = a->d_lse_stride_seq,
                           .stride_head = a->d_lse_stride_head};
    int64_t elements;
    if (rows.stride_batch == 0 && rows.stride_seq == 0 && rows.stride_head == 0)
        elements = sizes[0] * sizes[1] * sizes[2];
    else if (!get_extent(&rows, sizes, 1, 0, 1, &elements))
        return false;
    if (a->d_lse != NULL)
        a->d_lse = filled(elements * (int64_t)sizeof(float), 0x3c);
    return true;
}

static void give_workspace(flash_backward_args_t *a, uint8_t part) {
    uint64_t least = 0, best = 0;
    if (flash_backward_workspace_size(a, &least, &best) != FLASH_SUCCESS)
        return;
    a->workspace_size = least + (best - least) * part / 255;
    a->workspace = filled((int64_t)a->workspace_size, 0xff);
}

static void call(flash_backward_args_t *a, uint8_t part) {
    give_workspace(a, part);
    const flash_status_t status = flash_backward(a, NULL);
    CHECK(status == FLASH_SUCCESS || status == FLASH_ERROR_INVALID_ARGUMENT ||
          status == FLASH_ERROR_UNSUPPORTED);
    free(a->workspace);
}

void run_backward(const flash_backward_args_t *given, const int64_t sizes_q[3],
                  const int64_t sizes_k[3], input_t *in) {
    flash_backward_args_t a = *given;
    if (a.forward == NULL || a.struct_size != sizeof a)
        return;
    const flash_forward_args_t *f = a.forward;
    part_t parts[N_TENSORS] = {{&a.d_o, sizes_q, d_head_v(f), type_or(f->o.dtype, f->dtype)},
                               {&a.dq, sizes_q, f->d_head, type_or(f->q.dtype, f->dtype)},
                               {&a.dk, sizes_k, f->d_head, type_or(f->k.dtype, f->dtype)},
                               {&a.dv, sizes_k, d_head_v(f), type_or(f->v.dtype, f->dtype)}};
    const uint8_t value = take_byte(in), part = take_byte(in);
    int n = 0;
    while (n < N_TENSORS && allocate(&parts[n], (uint8_t)(value + n)))
        n++;
    if (n == N_TENSORS && allocate_d_lse(&a, sizes_q)) {
        if (a.d_sinks != NULL)
            a.d_sinks = filled(f->n_heads * (int64_t)sizeof(float), 0xff);
        call(&a, part);
        free(a.d_sinks);
        free((void *)(uintptr_t)a.d_lse);
    }
    while (n-- > 0)
        free(parts[n].tensor->data);
}
