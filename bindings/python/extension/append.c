/* This file calls flash_kv_append() on torch's tensors, for sound calls alone, as attention.c does
 * flash_forward(). */
#include "append.h"

#include "cache.h"
#include "numbers.h"
#include "tensor.h"

/* The arguments of append(), by their places: those of the operator, in their order. */
enum {
    K_NEW,
    V_NEW,
    K_CACHE,
    V_CACHE,
    SEQUSED_K,
    SEQUSED_K_OUT,
    SLOT_MAPPING,
    CU_SEQLENS_NEW,
    PAGE_TABLE,
    V_PAGE_TABLE,
    PAGE_INDPTR,
    PAGE_ROWS,
    K_DESCALE,
    V_DESCALE,
    Q,
    Q_OUT,
    CU_SEQLENS_Q,
    ROTARY_COS,
    ROTARY_SIN,
    ROTARY_INTERLEAVED,
    ROTARY_POSITIONS,
    ROTARY_START,
    ROTARY_Q_AT_START,
    PAGE_SCALES,
    N_ARGUMENTS
};

/* A call, with what its arguments point to. */
typedef struct {
    PyObject *const *arguments;
    bool records_gradients;
    bool is_flat; /* tokens are not [batch, seqlen_new, ...] */
    int64_t n_tokens;
    tensor_t k_new, k;
    flash_kv_append_args_t args;
    flash_paging_t paging;
    flash_quant_t quant;
    flash_rotary_t rotary;
} call_t;

static bool read_at(const call_t *c, int place, tensor_t *tensor) {
    return tensor_read_values(c->arguments[place], c->records_gradients, tensor);
}

static bool is_given(const call_t *c, int place) {
    return c->arguments[place] != Py_None;
}

/* ---- K and V ---- */

/* Says whether all axes but the last are as long in both. */
static bool have_same_rows(const tensor_t *a, const tensor_t *b) {
    if (a->n_axes != b->n_axes || a->device != b->device)
        return false;
    for (int32_t i = 0; i < a->n_axes - 1; i++)
        if (a->shape[i] != b->shape[i])
            return false;
    return true;
}

static bool have_one_shape(const tensor_t *a, const tensor_t *b) {
    return have_same_rows(a, b) && tensor_last(a, 1) == tensor_last(b, 1);
}

static bool read_keys(call_t *c) {
    if (!read_at(c, K_NEW, &c->k_new) || !read_at(c, K_CACHE, &c->k))
        return false;
    c->is_flat = is_given(c, CU_SEQLENS_NEW) || (is_given(c, SLOT_MAPPING) && c->k_new.n_axes == 3);
    if (c->k_new.n_axes != (c->is_flat ? 3 : 4) || c->k.n_axes != 4)
        return false;
    c->args.k_new = tensor_of_api(&c->k_new, c->is_flat);
    c->args.k = tensor_of_api(&c->k, false);
    return c->k.device == c->k_new.device && tensor_last(&c->k, 1) == tensor_last(&c->k_new, 1) &&
           tensor_last(&c->k, 2) == tensor_last(&c->k_new, 2) &&
           tensor_has_contiguous_rows(&c->k_new) && tensor_has_contiguous_rows(&c->k);
}

static bool read_values(call_t *c) {
    tensor_t v_new, v;
    if (!is_given(c, V_NEW) && !is_given(c, V_CACHE))
        return true;
    if (!read_at(c, V_NEW, &v_new) || !read_at(c, V_CACHE, &v) ||
        !have_same_rows(&v_new, &c->k_new) || !have_same_rows(&v, &c->k) ||
        tensor_last(&v_new, 1) != tensor_last(&v, 1) || !tensor_has_contiguous_rows(&v_new) ||
        !tensor_has_contiguous_rows(&v))
        return false;
    c->args.d_head_v = tensor_last(&v, 1);
    if (c->args.d_head_v == 0) /* to the API that is d_head */
        return false;
    c->args.v_new = tensor_of_api(&v_new, c->is_flat);
    c->args.v = tensor_of_api(&v, false);
    return true;
}

/* ---- Places ---- */

static bool read_sizes(call_t *c) {
    flash_kv_append_args_t *args = &c->args;
    tensor_t ends;
    args->n_heads_kv = tensor_last(&c->k_new, 2);
    args->d_head = tensor_last(&c->k_new, 1);
    args->seqlen_new = tensor_last(&c->k_new, 3);
    args->batch = c->is_flat ? 1 : c->k_new.shape[0];
    c->n_tokens = args->batch * args->seqlen_new;
    if (!is_given(c, CU_SEQLENS_NEW))
        return true;
    if (!tensor_read(c->arguments[CU_SEQLENS_NEW], &ends) || ends.n_axes != 1)
        return false;
    args->batch = ends.shape[0] - 1;
    return args->batch >= 0;
}

static bool read_pages(call_t *c) {
    PyObject *const *a = c->arguments;
    const page_objects_t pages = {a[PAGE_TABLE], a[V_PAGE_TABLE], a[PAGE_INDPTR], a[PAGE_ROWS]};
    c->args.seqlen_k = c->k.shape[1];
    if (!cache_has_pages(&pages) && !is_given(c, SLOT_MAPPING))
        return c->k.shape[0] == c->args.batch;
    c->args.paging = &c->paging;
    return cache_read_pages(&pages, &c->k, c->args.batch, &c->paging, &c->args.seqlen_k);
}

static bool read_places(call_t *c) {
    PyObject *const *a = c->arguments;
    flash_kv_append_args_t *args = &c->args;
    const int32_t device = c->k_new.device;
    const int32_t *after = NULL;
    if (!read_sizes(c) || !read_pages(c))
        return false;
    const bool are_read =
        tensor_read_int32(a[CU_SEQLENS_NEW], args->batch + 1, device, &args->cu_seqlens_new) &&
        tensor_read_int32(a[SEQUSED_K], args->batch, device, &args->seqused_k) &&
        tensor_read_int32(a[SEQUSED_K_OUT], args->batch, device, &after) &&
        tensor_read_int64(a[SLOT_MAPPING], c->n_tokens, device, &args->slot_mapping);
    args->seqused_k_out = (int32_t *)(uintptr_t)after;
    return are_read;
}

/* ---- Queries, the rotary embedding and scales ---- */

static bool read_queries(call_t *c) {
    tensor_t q, q_out;
    flash_kv_append_args_t *args = &c->args;
    if (!is_given(c, Q))
        return !is_given(c, Q_OUT) && !is_given(c, CU_SEQLENS_Q);
    const bool one_sequence = c->is_flat && !is_given(c, CU_SEQLENS_NEW);
    const bool is_flat = is_given(c, CU_SEQLENS_Q) || one_sequence;
    if ((one_sequence && is_given(c, CU_SEQLENS_Q)) || !read_at(c, Q, &q) ||
        !read_at(c, Q_OUT, &q_out) || q.device != c->k_new.device || !have_one_shape(&q_out, &q) ||
        q.n_axes != (is_flat ? 3 : 4) || tensor_last(&q, 1) != args->d_head ||
        (!is_flat && q.shape[0] != args->batch) || !tensor_has_contiguous_rows(&q) ||
        !tensor_has_contiguous_rows(&q_out))
        return false;
    args->q = tensor_of_api(&q, is_flat);
    args->q_out = tensor_of_api(&q_out, is_flat);
    args->seqlen_q = tensor_last(&q, 3);
    args->n_heads = tensor_last(&q, 2);
    return tensor_read_int32(c->arguments[CU_SEQLENS_Q], args->batch + 1, q.device,
                             &args->cu_seqlens_q);
}

static bool has_no_rotary_options(const call_t *c) {
    PyObject *const *a = c->arguments;
    return a[ROTARY_INTERLEAVED] == Py_False && a[ROTARY_Q_AT_START] == Py_False &&
           !is_given(c, ROTARY_POSITIONS) && !is_given(c, ROTARY_START);
}

static bool read_rotary(call_t *c) {
    tensor_t cos, sin;
    flash_rotary_t *rotary = &c->rotary;
    if (!is_given(c, ROTARY_COS) && !is_given(c, ROTARY_SIN))
        return has_no_rotary_options(c);
    if (!read_at(c, ROTARY_COS, &cos) || !read_at(c, ROTARY_SIN, &sin) || cos.n_axes != 2 ||
        cos.device != c->k_new.device || !have_one_shape(&cos, &sin) || cos.dtype != sin.dtype ||
        cos.strides[0] != sin.strides[0] || cos.strides[1] != sin.strides[1] ||
        !tensor_has_contiguous_rows(&cos))
        return false;
    *rotary = (flash_rotary_t)FLASH_ROTARY_INIT;
    rotary->dtype = cos.dtype;
    rotary->cos = cos.data;
    rotary->sin = sin.data;
    rotary->stride_position = cos.strides[0];
    rotary->n_positions = cos.shape[0];
    rotary->rotary_dim = 2 * cos.shape[1];
    c->args.rotary = rotary;
    PyObject *const *a = c->arguments;
    return read_flag(a[ROTARY_INTERLEAVED], FLASH_ROTARY_INTERLEAVED, &rotary->flags) &&
           read_flag(a[ROTARY_Q_AT_START], FLASH_ROTARY_Q_AT_START, &rotary->flags) &&
           tensor_read_int64(a[ROTARY_POSITIONS], c->n_tokens, cos.device, &rotary->positions) &&
           tensor_read_int32(a[ROTARY_START], c->args.batch, cos.device, &rotary->start);
}

static bool read_scales(call_t *c) {
    PyObject *const *a = c->arguments;
    if (!read_flag(a[PAGE_SCALES], FLASH_FLAG_PAGE_SCALES, &c->args.flags))
        return false;
    if (!is_given(c, K_DESCALE) && !is_given(c, V_DESCALE))
        return true;
    const int64_t n = c->args.flags & FLASH_FLAG_PAGE_SCALES ? c->k.shape[0] : c->args.batch;
    c->args.quant = &c->quant;
    return cache_read_scales(a[K_DESCALE], a[V_DESCALE], n, c->args.n_heads_kv, c->k_new.device,
                             c->records_gradients, &c->quant);
}

/* ---- The call ---- */

static bool read_call(call_t *c) {
    PyObject *records = PyObject_CallNoArgs(host.records_gradients);
    c->records_gradients = records != Py_False;
    Py_XDECREF(records);
    c->args = (flash_kv_append_args_t)FLASH_KV_APPEND_ARGS_INIT;
    if (!host_is_plain() || !read_keys(c) || !read_values(c) || !read_places(c) ||
        !read_queries(c) || !read_rotary(c) || !read_scales(c))
        return false;
    const int32_t device = c->k_new.device;
    c->args.device = device == ON_CPU ? FLASH_DEVICE_CPU : FLASH_DEVICE_CUDA + device;
    c->args.dtype = c->k_new.dtype;
    c->args.flags |= FLASH_FLAG_BROADCAST; /* strides of 0 are always meant in torch */
    return true;
}

static bool run(call_t *c) {
    void *stream = NULL;
    const int32_t device = c->k_new.device;
    if (device != ON_CPU && host.exchange->current_stream(EXCHANGE_CUDA, device, &stream) != 0)
        return false;
    flash_status_t status;
    Py_BEGIN_ALLOW_THREADS status = host.append(&c->args, stream);
    Py_END_ALLOW_THREADS return status == FLASH_SUCCESS;
}

PyObject *append_tokens(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    call_t call = {.arguments = arguments};
    (void)module;
    if (count != N_ARGUMENTS)
        return PyErr_Format(PyExc_TypeError, "append() takes %d arguments", N_ARGUMENTS);
    const bool is_done = read_call(&call) && run(&call);
    PyErr_Clear();
    return PyBool_FromLong(is_done);
}
