/*
 * Attention, and gradients of it, with arguments made of the fuzzer's bytes. Calls that read no
 * data take any arguments. flash_forward() and flash_backward() take those that stay within this
 * program's memory, with tiny tensors of exactly the extent that the arguments describe, so that a
 * sanitizer sees every byte too far.
 */
#include "check.h"
#include "gradients.h"
#include "input.h"

#include <string.h>

enum { MOST_WORK = 1 << 16 };

static int64_t d_head_v(const flash_forward_args_t *a) {
    return a->d_head_v == 0 ? a->d_head : a->d_head_v;
}

static int32_t type_of(const flash_forward_args_t *a, const flash_tensor_t *tensor) {
    return tensor->dtype ? tensor->dtype : a->dtype;
}

/* Returns the elements of a row of the tensor, which has d_head numbers. */
static int64_t row_of(const flash_forward_args_t *a, const flash_tensor_t *tensor, int64_t d_head) {
    return row_elements(d_head, type_of(a, tensor));
}

static flash_tensor_t take_typed(input_t *in, const flash_forward_args_t *a, int64_t seqlen,
                                 int64_t heads, int64_t d_head, int32_t dtype) {
    const flash_tensor_t typed = {.dtype = dtype};
    flash_tensor_t tensor = take_tensor(in, seqlen, heads, row_of(a, &typed, d_head));
    tensor.dtype = dtype;
    return tensor;
}

/* V of latent tokens is K, and V of another type is made a view of it where it can be. */
static bool is_view(const flash_forward_args_t *a) {
    const flash_tensor_t *k = &a->k, *v = &a->v;
    const bool same = k->stride_batch == v->stride_batch && k->stride_seq == v->stride_seq &&
                      k->stride_head == v->stride_head && d_head_v(a) <= a->d_head;
    return type_of(a, k) == type_of(a, v) && (type_of(a, k) == FLASH_DTYPE_LATENT_E4M3 || same);
}

static flash_forward_args_t take_args(input_t *in) {
    flash_forward_args_t a = FLASH_FORWARD_ARGS_INIT;
    if (take_byte(in) == 255)
        a.struct_size = take_byte(in); /* at most the size of the struct */
    a.device = take_byte(in) < 250 ? 0 : (int32_t)take_number(in, 5);
    a.dtype = take_any_dtype(in);
    a.flags = (uint32_t)take_number(in, 63);
    a.batch = take_number(in, MOST_BATCH);
    a.seqlen_q = take_number(in, 20);
    a.seqlen_k = take_number(in, 40);
    a.n_heads_kv = take_number(in, 3);
    a.n_heads = take_byte(in) < 200 ? (a.n_heads_kv & 7) * (take_byte(in) % 4) : take_number(in, 8);
    a.d_head = take_d_head(in, 70, 576);
    a.d_head_v = take_byte(in) < 150 ? 0 : take_d_head(in, 70, 512);
    a.window_left = take_number(in, 20) - 1;
    a.window_right = take_number(in, 20) - 1;
    a.softmax_scale = take_float(in);
    a.softcap = take_float(in);
    const int32_t of_q = take_dtype(in), of_k = take_dtype(in);
    const int32_t of_v = take_byte(in) < 150 ? of_k : take_dtype(in), of_o = take_dtype(in);
    const bool is_latent = of_k == FLASH_DTYPE_LATENT_E4M3;
    if (is_latent && take_byte(in) < 200) { /* a sound call has no other sizes */
        a.d_head = 576;
        a.d_head_v = 512;
    }
    a.q = take_typed(in, &a, a.seqlen_q, a.n_heads, a.d_head, of_q);
    a.k = take_typed(in, &a, a.seqlen_k, a.n_heads_kv, a.d_head, of_k);
    a.v = take_typed(in, &a, a.seqlen_k, a.n_heads_kv, d_head_v(&a), of_v);
    a.o = take_typed(in, &a, a.seqlen_q, a.n_heads, d_head_v(&a), of_o);
    if (take_byte(in) >= (is_latent ? 50 : 200))
        a.v = a.k;
    a.n_multiprocessors = take_byte(in) < 240 ? 0 : (int32_t)take_number(in, 3);
    a.reserved32 = take_byte(in) == 255 ? take_byte(in) : 0;
    if (take_byte(in) == 255)
        take(in, a.reserved, sizeof a.reserved);
    return a;
}

/* The arrays of lengths, and bits that say which of them the call passes. */
typedef struct lengths {
    int32_t cu_q[MOST_BATCH + 1];
    int32_t cu_k[MOST_BATCH + 1];
    int32_t used_q[MOST_BATCH];
    int32_t used[MOST_BATCH];
    int32_t leftpad[MOST_BATCH];
    uint8_t given;
} lengths_t;

static void take_lengths(input_t *in, lengths_t *l, flash_forward_args_t *a) {
    take_ascending(in, l->cu_q);
    take_ascending(in, l->cu_k);
    for (int i = 0; i < MOST_BATCH; i++)
        l->used[i] = (int8_t)take_byte(in) % 16;
    for (int i = 0; i < MOST_BATCH; i++)
        l->used_q[i] = (int8_t)take_byte(in) % 8;
    l->given = take_byte(in);
    a->cu_seqlens_q = l->given & 1 ? l->cu_q : NULL;
    a->cu_seqlens_k = l->given & 2 ? l->cu_k : NULL;
    a->seqused_k = l->given & 4 ? l->used : NULL;
    a->seqused_q = l->given & 8 ? l->used_q : NULL;
}

/* ---- Slopes and masks ---- */

/* Strides and columns of small numbers; what they reach is allocated when the call is made. */
static void take_bias(input_t *in, flash_mask_t *mask, flash_forward_args_t *a) {
    static const float some = 0;
    const uint8_t given = take_byte(in);
    *mask = (flash_mask_t)FLASH_MASK_INIT;
    if (given & 2) {
        a->alibi_slopes = &some;
        a->alibi_stride_batch = given & 4 ? (int8_t)take_byte(in) % (2 * MOST_HEADS) : 0;
    }
    if (given % 2 == 0)
        return;
    mask->kind = take_byte(in) % 4;
    mask->dtype = take_byte(in) % 5;
    mask->flags = take_byte(in) % 3;
    mask->data = given & 8 ? &some : NULL;
    mask->stride_batch = (int8_t)take_byte(in);
    mask->stride_head = (int8_t)take_byte(in);
    mask->stride_query = (int8_t)take_byte(in);
    mask->stride_key = given & 16 ? (int8_t)take_byte(in) % 4 : 0;
    mask->first_key = given & 32 ? (int8_t)take_byte(in) : 0;
    mask->n_keys = take_number(in, 80);
    if (mask->kind == FLASH_MASK_BLOCKS || take_byte(in) == 255) {
        mask->block_q = take_number(in, 20);
        mask->block_k = take_number(in, 40);
    }
    mask->head_scale = given & 64 ? &some : NULL;
    a->mask = mask;
}

/* Returns how many bytes slopes may take that small() lets through, and masks. */
static int64_t bytes_of_slopes(const flash_forward_args_t *a) {
    const int64_t bytes = (a->batch * a->alibi_stride_batch + a->n_heads) * (int64_t)sizeof(float);
    return bytes > 0 ? bytes : 0;
}

/* Negative strides are refused before the mask is read. */
static int64_t bytes_of_mask(const flash_forward_args_t *a, int64_t queries) {
    const flash_mask_t *m = a->mask;
    const int64_t bytes = (a->batch * m->stride_batch + a->n_heads * m->stride_head +
                           queries * m->stride_query + m->n_keys * (m->stride_key + 1)) *
                          (int64_t)sizeof(float);
    return bytes > 0 ? bytes : 0;
}

/* ---- Chunks and padding ---- */

static void take_chunk_and_padding(input_t *in, lengths_t *l, flash_forward_args_t *a) {
    const uint8_t given = take_byte(in);
    if (given & 1)
        a->attention_chunk = take_number(in, 20) - 1;
    if (given & 8)
        a->diagonal_offset = (int8_t)take_byte(in) * (given & 16 ? (int64_t)1 << 25 : 1);
    for (int i = 0; i < MOST_BATCH; i++)
        l->leftpad[i] = given & 4 ? take_byte(in) : (int8_t)take_byte(in) % 16;
    a->leftpad_k = given & 2 ? l->leftpad : NULL;
}

/* ---- Dropout ---- */

static const flash_dropout_t *take_dropout(input_t *in, flash_dropout_t *dropout) {
    static const uint64_t some = 1;
    const uint8_t given = take_byte(in);
    *dropout = (flash_dropout_t)FLASH_DROPOUT_INIT;
    if (given < 192)
        return NULL;
    dropout->p = given & 1 ? take_float(in) : (float)take_byte(in) / 256;
    dropout->seed = take_byte(in);
    dropout->offset = take_byte(in);
    dropout->seed_ptr = given & 2 ? &some : NULL;
    dropout->offset_ptr = given & 4 ? &some : NULL;
    return dropout;
}

/* ---- Calls that read no data ---- */

static flash_status_t check_shape_calls(const flash_forward_args_t *a) {
    const flash_kernel_t *kernel = NULL;
    char reason[64];
    uint64_t size = 0;
    const flash_status_t status = flash_query_support(a, NULL, reason, sizeof reason);
    CHECK(flash_workspace_size(a, NULL, &size) == status);
    CHECK(flash_select_kernel(a, &kernel, reason, sizeof reason) == status);
    if (status == FLASH_SUCCESS) {
        flash_config_t config = FLASH_CONFIG_INIT;
        CHECK(flash_query_support(a, kernel, reason, sizeof reason) == FLASH_SUCCESS);
        CHECK(flash_kernel_config(kernel, &config) == FLASH_SUCCESS);
        CHECK(flash_lookup_kernel(&config) == kernel);
    } else {
        CHECK(strcmp(flash_last_error(), "") != 0);
    }
    return status;
}

/* ---- flash_forward() ---- */

static bool small(const flash_forward_args_t *a) {
    return (a->mask == NULL || a->mask->n_keys <= 4096) && a->batch <= MOST_BATCH &&
           a->seqlen_q <= 64 && a->seqlen_k <= 64 && a->n_heads <= MOST_HEADS &&
           a->n_heads_kv <= MOST_HEADS && a->d_head <= 576 && d_head_v(a) <= 576 &&
           (a->paging == NULL || (a->paging->n_pages <= 64 && a->paging->page_size <= 64)) &&
           a->batch * a->seqlen_q * a->seqlen_k * a->n_heads * (a->d_head + d_head_v(a)) <=
               MOST_WORK * 32;
}

static int32_t last(const int32_t *cu, int64_t batch) {
    return cu[batch] > 0 ? cu[batch] : 0;
}

/* Returns a row of the table that serves the problem, or NULL for the library's choice. */
static const flash_kernel_t *pick_kernel(const flash_forward_args_t *a, uint8_t index) {
    const flash_kernel_t *kernel = flash_kernel_at(index % flash_kernel_count());
    return flash_query_support(a, kernel, NULL, 0) == FLASH_SUCCESS ? kernel : NULL;
}

static void run(flash_forward_args_t *a, const flash_backward_args_t *backward, uint8_t value,
                uint8_t index, input_t *in) {
    const int64_t batch_q = a->cu_seqlens_q ? 1 : a->batch;
    const bool ragged_k = a->cu_seqlens_k != NULL && a->paging == NULL;
    const int64_t batch_k = ragged_k ? 1 : a->batch;
    const int64_t seq_q = a->cu_seqlens_q ? last(a->cu_seqlens_q, a->batch) : a->seqlen_q;
    const int64_t seq_k = ragged_k ? last(a->cu_seqlens_k, a->batch) : a->seqlen_k;
    const int64_t sizes_q[3] = {batch_q, seq_q, a->n_heads};
    const int64_t sizes_k[3] = {a->paging ? a->paging->n_pages : batch_k,
                                a->paging ? a->paging->page_size : seq_k, a->n_heads_kv};
    int64_t q, k, v, o;
    if (!get_extent(&a->q, sizes_q, row_of(a, &a->q, a->d_head), 0, 1, &q) ||
        !get_extent(&a->k, sizes_k, row_of(a, &a->k, a->d_head), 0, 1, &k) ||
        !get_extent(&a->v, sizes_k, row_of(a, &a->v, d_head_v(a)), 0, 1, &v) ||
        !get_extent(&a->o, sizes_q, row_of(a, &a->o, d_head_v(a)), 0, 1, &o))
        return;
    const bool v_is_k = is_view(a);
    a->q.data = filled(q * element_size(a->dtype, a->q.dtype), value);
    a->k.data = filled(k * element_size(a->dtype, a->k.dtype), (uint8_t)(value + 1));
    a->v.data =
        v_is_k ? a->k.data : filled(v * element_size(a->dtype, a->v.dtype), (uint8_t)(value + 2));
    a->o.data = filled(o * element_size(a->dtype, a->o.dtype), 0xff);
    a->lse = filled(batch_q * seq_q * a->n_heads * (int64_t)sizeof(float), 0xff);
    float *sinks =
        value % 2 ? filled(a->n_heads * (int64_t)sizeof *sinks, (uint8_t)(value + 3)) : NULL;
    a->sinks = sinks;
    void *slopes = NULL;
    flash_mask_t mask = FLASH_MASK_INIT;
    if (a->alibi_slopes != NULL)
        a->alibi_slopes = slopes = filled(bytes_of_slopes(a), (uint8_t)(value + 4));
    if (a->mask != NULL) {
        mask = *a->mask;
        mask.data = filled(bytes_of_mask(a, seq_q), (uint8_t)(value + 5));
        if (mask.head_scale != NULL)
            mask.head_scale = filled(a->n_heads * (int64_t)sizeof(float), (uint8_t)(value + 6));
        a->mask = &mask;
    }
    const flash_kernel_t *kernel = pick_kernel(a, index);
    CHECK(flash_workspace_size(a, kernel, &a->workspace_size) == FLASH_SUCCESS);
    a->workspace = filled((int64_t)a->workspace_size, 0xff);
    const flash_status_t status = flash_forward(a, kernel, NULL);
    CHECK(status == FLASH_SUCCESS || status == FLASH_ERROR_INVALID_ARGUMENT ||
          status == FLASH_ERROR_UNSUPPORTED /* reserved fields */);
    run_backward(backward, sizes_q, sizes_k, in);
    free(a->q.data);
    free(a->k.data);
    if (!v_is_k)
        free(a->v.data);
    free(a->o.data);
    free(a->lse);
    free(sinks);
    free(slopes);
    free((void *)(uintptr_t)mask.data);
    free((void *)(uintptr_t)mask.head_scale);
    free(a->workspace);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool initialised;
    input_t in = {data, size};
    lengths_t lengths;
    pages_t pages;
    scales_t scales;
    flash_mask_t mask;
    flash_dropout_t dropout;
    if (!initialised)
        CHECK(flash_set_num_threads(2) == FLASH_SUCCESS);
    initialised = true;
    flash_forward_args_t args = take_args(&in);
    take_lengths(&in, &lengths, &args);
    args.paging = take_pages(&in, &pages);
    args.quant = take_scales(&in, &scales);
    const uint8_t value = take_byte(&in), index = take_byte(&in);
    take_bias(&in, &mask, &args);
    take_chunk_and_padding(&in, &lengths, &args);
    args.dropout = take_dropout(&in, &dropout);
    const flash_backward_args_t backward = take_backward(&in, &args);
    check_backward_shape_calls(&backward);
    if (check_shape_calls(&args) == FLASH_SUCCESS && args.struct_size == sizeof args &&
        small(&args))
        run(&args, &backward, value, index, &in);
    return 0;
}
