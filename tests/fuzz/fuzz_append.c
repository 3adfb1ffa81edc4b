/*
 * Appending with arguments made of the fuzzer's bytes: any sizes and strides with a call that must
 * be refused before it reads data, and those that fit into memory with arrays of exactly the extent
 * that they describe.
 */
#include "check.h"
#include "input.h"

#include <string.h>

enum { MOST_TOKENS = 64, MOST_POSITIONS = 32 };

/* The arrays of a call, each as long as the library may read. */
typedef struct arrays {
    int32_t cu_new[MOST_BATCH + 1];
    int32_t cu_q[MOST_BATCH + 1];
    int32_t used[MOST_BATCH];
    int32_t after[MOST_BATCH];
    int32_t start[MOST_BATCH];
    int64_t slots[MOST_TOKENS];
    int64_t positions[MOST_TOKENS];
    flash_rotary_t rotary;
    pages_t pages;
    scales_t scales;
} arrays_t;

static int64_t d_head_v(const flash_kv_append_args_t *a) {
    return a->d_head_v == 0 ? a->d_head : a->d_head_v;
}

/* Returns the elements of a row of a tensor of so many columns. */
static int64_t row_of(const flash_kv_append_args_t *a, int64_t columns, int32_t dtype) {
    return row_elements(columns, dtype ? dtype : a->dtype);
}

static flash_tensor_t take_wide(input_t *in, const flash_kv_append_args_t *a, int64_t seqlen,
                                int64_t heads, int64_t columns, int32_t dtype) {
    flash_tensor_t tensor = take_tensor(in, seqlen, heads, row_of(a, columns, dtype));
    tensor.dtype = dtype;
    return tensor;
}

static flash_tensor_t take_typed(input_t *in, const flash_kv_append_args_t *a, int64_t seqlen,
                                 int64_t heads, int32_t dtype) {
    return take_wide(in, a, seqlen, heads, a->d_head, dtype);
}

static flash_kv_append_args_t take_args(input_t *in) {
    flash_kv_append_args_t a = FLASH_KV_APPEND_ARGS_INIT;
    if (take_byte(in) == 255)
        a.struct_size = (uint32_t)(take_byte(in) * 3) % (sizeof a + 1);
    a.device = take_byte(in) < 250 ? 0 : (int32_t)take_number(in, 5);
    a.dtype = take_any_dtype(in);
    a.flags = (uint32_t)take_number(in, 63);
    a.batch = take_number(in, MOST_BATCH);
    a.seqlen_new = take_number(in, 9);
    a.seqlen_k = take_number(in, 40);
    a.seqlen_q = take_number(in, 9);
    a.n_heads = take_number(in, 4);
    a.n_heads_kv = take_number(in, 3);
    a.d_head = take_d_head(in, 140, 576);
    const int32_t of_new = take_dtype(in), of_k = take_dtype(in);
    const int32_t of_v = take_byte(in) < 150 ? of_k : take_dtype(in);
    a.k_new = take_typed(in, &a, a.seqlen_new, a.n_heads_kv, of_new);
    a.d_head_v = take_byte(in) < 150 ? 0 : take_d_head(in, 140, 576);
    a.v_new = take_wide(in, &a, a.seqlen_new, a.n_heads_kv, d_head_v(&a), of_new);
    a.k = take_typed(in, &a, a.seqlen_k, a.n_heads_kv, of_k);
    a.v = take_wide(in, &a, a.seqlen_k, a.n_heads_kv, d_head_v(&a), of_v);
    a.q = take_typed(in, &a, a.seqlen_q, a.n_heads, take_dtype(in));
    a.q_out = take_typed(in, &a, a.seqlen_q, a.n_heads, take_dtype(in));
    return a;
}

static void take_rotary(input_t *in, arrays_t *x, flash_kv_append_args_t *a) {
    const uint8_t given = take_byte(in);
    x->rotary = (flash_rotary_t)FLASH_ROTARY_INIT;
    if (given % 2 == 0)
        return;
    x->rotary.dtype = take_dtype(in);
    x->rotary.flags = take_byte(in) % 5;
    x->rotary.n_positions = take_number(in, MOST_POSITIONS);
    const int64_t pairs = take_number(in, a->d_head > 0 && a->d_head < 140 ? a->d_head / 2 : 8);
    x->rotary.rotary_dim = (int64_t)(2 * (uint64_t)pairs);
    x->rotary.stride_position = take_byte(in) < 200 ? x->rotary.rotary_dim : take_number(in, 90);
    x->rotary.positions = given & 2 ? x->positions : NULL;
    x->rotary.start = given & 4 ? x->start : NULL;
    a->rotary = &x->rotary;
}

static void take_arrays(input_t *in, arrays_t *x, flash_kv_append_args_t *a) {
    const uint8_t given = take_byte(in);
    take_ascending(in, x->cu_new);
    take_ascending(in, x->cu_q);
    for (int b = 0; b < MOST_BATCH; b++) {
        x->used[b] = (int8_t)take_byte(in) % 24;
        x->start[b] = (int8_t)take_byte(in) % 24;
        x->after[b] = -1;
    }
    for (int i = 0; i < MOST_TOKENS; i++) {
        x->slots[i] = (int64_t)i - (given & 64 ? take_byte(in) % 4 : 0);
        x->positions[i] = i % 8 + (given & 128 ? (int8_t)take_byte(in) : 0);
    }
    a->cu_seqlens_new = given & 1 ? x->cu_new : NULL;
    a->cu_seqlens_q = given & 2 ? x->cu_q : NULL;
    a->seqused_k = given & 4 ? x->used : NULL;
    a->seqused_k_out = given & 8 ? x->after : NULL;
    a->slot_mapping = given & 16 ? x->slots : NULL;
    take_rotary(in, x, a);
    a->paging = take_pages(in, &x->pages);
    a->quant = take_scales(in, &x->scales);
}

/* ---- Calls that are refused before they read data ---- */

/* Says whether no token of K and V is to be written, as far as the host knows. */
static bool has_no_tokens(const flash_kv_append_args_t *a) {
    return a->struct_size < sizeof *a || a->batch == 0 || a->seqlen_new == 0;
}

/* All checks may pass, except that of a pointer. */
static void check_refused(const flash_kv_append_args_t *args) {
    flash_kv_append_args_t a = *args;
    a.seqlen_q = 0;
    a.seqused_k_out = NULL;
    CHECK(flash_kv_append(&a, NULL) != FLASH_SUCCESS || has_no_tokens(&a)); /* k_new.data is NULL */
}

/* ---- Calls that run ---- */

static int64_t tokens_of(int64_t batch, int64_t seqlen, const int32_t *cu_seqlens) {
    return cu_seqlens ? seqlen : batch * seqlen;
}

static bool small(const flash_kv_append_args_t *a) {
    const int64_t sizes[] = {a->batch,    a->seqlen_new, a->seqlen_q,
                             a->seqlen_k, a->d_head,     d_head_v(a)};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i] < 0 || sizes[i] > 576)
            return false;
    if (a->paging && (a->paging->n_pages > 64 || a->paging->page_size > 64))
        return false;
    return a->batch <= MOST_BATCH && a->n_heads <= MOST_HEADS && a->n_heads_kv <= MOST_HEADS &&
           tokens_of(a->batch, a->seqlen_new, a->cu_seqlens_new) <= MOST_TOKENS &&
           tokens_of(a->batch, a->seqlen_q, a->cu_seqlens_q) <= MOST_TOKENS;
}

/* Allocates a tensor. Returns false where it does not fit. */
static bool allocate_wide(const flash_kv_append_args_t *a, flash_tensor_t *tensor,
                          const int64_t sizes[3], int64_t columns, uint8_t value) {
    int64_t elements = 0;
    if (!get_extent(tensor, sizes, row_of(a, columns, tensor->dtype), 0, 1, &elements))
        return false;
    tensor->data = filled(elements * element_size(a->dtype, tensor->dtype), value);
    return true;
}

static bool allocate(const flash_kv_append_args_t *a, flash_tensor_t *tensor,
                     const int64_t sizes[3], uint8_t value) {
    return allocate_wide(a, tensor, sizes, a->d_head, value);
}

static bool allocate_all(flash_kv_append_args_t *a, uint8_t value, bool has_v) {
    const int64_t sizes_new[3] = {a->cu_seqlens_new ? 1 : a->batch, a->seqlen_new, a->n_heads_kv};
    const int64_t sizes_q[3] = {a->cu_seqlens_q ? 1 : a->batch, a->seqlen_q, a->n_heads};
    const int64_t sizes[3] = {a->paging ? a->paging->n_pages : a->batch,
                              a->paging ? a->paging->page_size : a->seqlen_k, a->n_heads_kv};
    return allocate(a, &a->k_new, sizes_new, value) && allocate(a, &a->k, sizes, 0xff) &&
           (!has_v || (allocate_wide(a, &a->v_new, sizes_new, d_head_v(a), (uint8_t)(value + 1)) &&
                       allocate_wide(a, &a->v, sizes, d_head_v(a), 0xff))) &&
           allocate(a, &a->q, sizes_q, (uint8_t)(value + 2)) &&
           (value % 2 == 0 || allocate(a, &a->q_out, sizes_q, 0xff));
}

static bool allocate_tables(const flash_kv_append_args_t *a, flash_rotary_t *r) {
    if (a->rotary == NULL || r->n_positions < 1)
        return true;
    if (r->n_positions > MOST_POSITIONS || r->stride_position < 0 || r->rotary_dim < 0 ||
        r->stride_position > MOST_ELEMENTS || r->rotary_dim > 1024)
        return false;
    const int64_t step = r->n_positions > 1 ? r->stride_position : 0;
    const int64_t elements = step * (r->n_positions - 1) + r->rotary_dim / 2;
    r->cos = filled(elements * element_size(a->dtype, r->dtype), 0x3a);
    r->sin = filled(elements * element_size(a->dtype, r->dtype), 0x3b);
    return true;
}

static void run(flash_kv_append_args_t *a, arrays_t *x, uint8_t value) {
    if (allocate_all(a, value, value & 4) && allocate_tables(a, &x->rotary)) {
        const flash_status_t status = flash_kv_append(a, NULL);
        CHECK(status == FLASH_SUCCESS || status == FLASH_ERROR_INVALID_ARGUMENT ||
              status == FLASH_ERROR_UNSUPPORTED);
        for (int64_t b = 0; b < a->batch && a->seqused_k_out; b++)
            CHECK(status == FLASH_SUCCESS ? x->after[b] >= x->used[b] : x->after[b] == -1);
    }
    void *memory[] = {a->k_new.data,
                      a->v_new.data,
                      a->k.data,
                      a->v.data,
                      a->q.data,
                      a->q_out.data,
                      (void *)(uintptr_t)x->rotary.cos,
                      (void *)(uintptr_t)x->rotary.sin};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        free(memory[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool initialised;
    input_t in = {data, size};
    arrays_t arrays;
    if (!initialised)
        CHECK(flash_set_num_threads(2) == FLASH_SUCCESS);
    initialised = true;
    flash_kv_append_args_t args = take_args(&in);
    const uint8_t value = take_byte(&in);
    take_arrays(&in, &arrays, &args);
    check_refused(&args);
    if (args.struct_size == sizeof args && args.device == FLASH_DEVICE_CPU && small(&args))
        run(&args, &arrays, value);
    return 0;
}
