/*
 * This file calls flash_forward() on torch's tensors. It serves sound calls alone: wherever a
 * condition does not hold it gives the call up, and so it has no messages.
 */
#include "attention.h"

#include "cache.h"
#include "numbers.h"
#include "tensor.h"
#include "workspace.h"

/* The places of the arguments of forward() that are read by name here. host.members are the others,
 * some of them behind these. _torch/call.py has the same order. */
enum {
    Q,
    K,
    V,
    OUT,
    LSE,
    RETURN_LSE,
    OUT_DTYPE,
    RAGGED, /* groups: tuples, or None */
    PAGES,
    BIAS,
    SOFTMAX_SCALE,
    CAUSAL,
    WINDOW_LEFT,
    WINDOW_RIGHT,
    SOFTCAP,
    BATCH_INVARIANT,
    K_DESCALE,
    V_DESCALE,
    SINKS,
    SEQUSED_Q,
    SEQUSED_K,
    N_NAMED
};

/* The places in RAGGED and PAGES. */
enum { CU_SEQLENS_Q, CU_SEQLENS_K, MAX_SEQLEN_Q, MAX_SEQLEN_K, N_RAGGED };
enum { PAGE_TABLE, V_PAGE_TABLE, PAGE_INDPTR, PAGE_ROWS, N_PAGES };

/* A call, with what its arguments point to. */
typedef struct {
    PyObject *const *arguments;
    Py_ssize_t count;
    PyObject *ragged[N_RAGGED], *pages[N_PAGES];
    bool records_gradients;
    tensor_t q, k, v;
    flash_forward_args_t args;
    flash_paging_t paging;
    flash_quant_t quant;
    PyObject *out, *lse; /* references */
} call_t;

/* ---- Q, K and V ---- */

static bool read_tensors(call_t *c) {
    PyObject *const *a = c->arguments;
    return tensor_read_values(a[Q], c->records_gradients, &c->q) &&
           tensor_read_values(a[K], c->records_gradients, &c->k) &&
           tensor_read_values(a[V], c->records_gradients, &c->v) && c->k.device == c->q.device &&
           c->v.device == c->q.device;
}

/* Says whether V has K's shape but for the last axis, and all have rows of elements. */
static bool fit_together(const call_t *c) {
    if (c->v.n_axes != c->k.n_axes || tensor_last(&c->k, 1) != tensor_last(&c->q, 1))
        return false;
    for (int32_t i = 0; i < c->k.n_axes - 1; i++)
        if (c->v.shape[i] != c->k.shape[i])
            return false;
    return tensor_last(&c->v, 1) > 0 && tensor_has_contiguous_rows(&c->q) &&
           tensor_has_contiguous_rows(&c->k) && tensor_has_contiguous_rows(&c->v);
}

/* ---- Sequences ---- */

/* Reads a group of `count` arguments, each None where the group is. */
static bool read_group(PyObject *group, Py_ssize_t count, PyObject **members) {
    for (Py_ssize_t i = 0; i < count; i++)
        members[i] = Py_None;
    if (group == Py_None)
        return true;
    if (PyTuple_Size(group) != count)
        return false;
    for (Py_ssize_t i = 0; i < count; i++)
        members[i] = PyTuple_GetItem(group, i);
    return true;
}

static bool read_longest(PyObject *object, int64_t n_tokens, int64_t *longest) {
    if (!read_integer(object, longest))
        return false;
    if (*longest > n_tokens)
        *longest = n_tokens;
    return true;
}

/* Says that a bound on lengths is absent, or the length of every sequence. */
static bool is_length(PyObject *object, int64_t length) {
    int64_t longest = 0;
    return object == Py_None || (read_integer(object, &longest) && longest == length);
}

/* Returns how many sequences cu_seqlens has, or -1 for what it cannot be. */
static int64_t count_of(PyObject *cu_seqlens) {
    tensor_t ends;
    return tensor_read(cu_seqlens, &ends) && ends.n_axes == 1 ? ends.shape[0] - 1 : -1;
}

/* Reads cu_seqlens, whose end in memory of the host must be n_tokens, or at most that. */
static bool read_ends(PyObject *object, const call_t *c, int64_t n_tokens, bool is_exact,
                      const int32_t **ends) {
    if (!tensor_read_int32(object, c->args.batch + 1, c->q.device, ends))
        return false;
    if (c->q.device != ON_CPU)
        return true;
    const int64_t end = (*ends)[c->args.batch];
    return end <= n_tokens && (end == n_tokens || !is_exact);
}

static bool read_queries(call_t *c, bool has_pages) {
    flash_forward_args_t *args = &c->args;
    args->n_heads = tensor_last(&c->q, 2);
    args->d_head = tensor_last(&c->q, 1);
    if (c->ragged[CU_SEQLENS_Q] == Py_None) {
        args->batch = c->q.shape[0];
        args->seqlen_q = c->q.shape[1];
        return is_length(c->ragged[MAX_SEQLEN_Q], args->seqlen_q);
    }
    const bool k_is_padded = c->ragged[CU_SEQLENS_K] == Py_None && !has_pages;
    args->batch = k_is_padded ? c->k.shape[0] : count_of(c->ragged[CU_SEQLENS_Q]);
    return args->batch >= 0 &&
           read_ends(c->ragged[CU_SEQLENS_Q], c, c->q.shape[0], true, &args->cu_seqlens_q) &&
           read_longest(c->ragged[MAX_SEQLEN_Q], c->q.shape[0], &args->seqlen_q);
}

static bool read_paged_keys(call_t *c, const page_objects_t *pages) {
    flash_forward_args_t *args = &c->args;
    if (!cache_read_pages(pages, &c->k, args->batch, &c->paging, &args->seqlen_k) ||
        !tensor_read_int32(c->ragged[CU_SEQLENS_K], args->batch + 1, c->k.device,
                           &args->cu_seqlens_k))
        return false;
    args->paging = &c->paging;
    return c->ragged[MAX_SEQLEN_K] == Py_None ||
           read_longest(c->ragged[MAX_SEQLEN_K], args->seqlen_k, &args->seqlen_k);
}

static bool read_keys(call_t *c) {
    flash_forward_args_t *args = &c->args;
    if (c->ragged[CU_SEQLENS_K] != Py_None)
        return read_ends(c->ragged[CU_SEQLENS_K], c, c->k.shape[0], false, &args->cu_seqlens_k) &&
               read_longest(c->ragged[MAX_SEQLEN_K], c->k.shape[0], &args->seqlen_k);
    args->seqlen_k = c->k.shape[1];
    return c->k.shape[0] == args->batch && is_length(c->ragged[MAX_SEQLEN_K], args->seqlen_k);
}

static bool read_sequences(call_t *c) {
    if (!read_group(c->arguments[RAGGED], N_RAGGED, c->ragged) ||
        !read_group(c->arguments[PAGES], N_PAGES, c->pages))
        return false;
    const page_objects_t pages = {c->pages[PAGE_TABLE], c->pages[V_PAGE_TABLE],
                                  c->pages[PAGE_INDPTR], c->pages[PAGE_ROWS]};
    const bool has_pages = cache_has_pages(&pages);
    const int32_t q_axes = c->ragged[CU_SEQLENS_Q] == Py_None ? 4 : 3;
    const int32_t k_axes = has_pages || c->ragged[CU_SEQLENS_K] == Py_None ? 4 : 3;
    if (c->q.n_axes != q_axes || c->k.n_axes != k_axes || !fit_together(c))
        return false;
    if (!read_queries(c, has_pages) || !(has_pages ? read_paged_keys(c, &pages) : read_keys(c)))
        return false;
    flash_forward_args_t *args = &c->args;
    args->n_heads_kv = tensor_last(&c->k, 2);
    args->d_head_v = tensor_last(&c->v, 1);
    return true;
}

/* ---- The rest of what is read ---- */

static bool read_window(call_t *c) {
    flash_forward_args_t *args = &c->args;
    if (!read_integer(c->arguments[WINDOW_LEFT], &args->window_left) ||
        !read_integer(c->arguments[WINDOW_RIGHT], &args->window_right))
        return false;
    if (args->window_left == -1 && args->window_right == -1)
        args->window_left = args->window_right = 0;
    else
        args->flags |= FLASH_FLAG_WINDOW;
    return true;
}

static bool is_zero(PyObject *object) {
    const bool is_number = PyFloat_CheckExact(object) || PyLong_CheckExact(object);
    return is_number && PyObject_IsTrue(object) == 0;
}

/* Reads the argument into its member of args, or into the flags. */
static bool read_member(call_t *c, const member_t *of) {
    PyObject *object = c->arguments[of->place];
    void *member = (char *)&c->args + of->offset;
    switch (of->kind) {
    case '?':
        return read_flag(object, of->flag, &c->args.flags);
    case 'q':
        return read_integer(object, member);
    case 'i':
        return read_count(object, member);
    case 's':
        return read_positive(object, true, member);
    case 'f':
        return read_positive(object, false, member);
    case 'p':
        return tensor_read_int32(object, c->args.batch, c->q.device, member);
    case '-':
        return object == Py_None || is_zero(object);
    default:
        return false;
    }
}

/* Reads what is one member each; arguments that are left out have their defaults. */
static bool read_members(call_t *c) {
    for (int32_t i = 0; i < host.n_members; i++)
        if (host.members[i].place < c->count && !read_member(c, &host.members[i]))
            return false;
    return true;
}

/* Says whether nothing is given that only the rest of the package serves. */
static bool has_no_more(const call_t *c) {
    return c->arguments[OUT_DTYPE] == Py_None && c->arguments[BIAS] == Py_None;
}

static bool read_sinks(call_t *c) {
    tensor_t sinks;
    PyObject *object = c->arguments[SINKS];
    if (object == Py_None)
        return true;
    if (!tensor_read_values(object, c->records_gradients, &sinks) ||
        !tensor_is(&sinks, FLASH_DTYPE_FP32, 1, c->q.device) || sinks.shape[0] != c->args.n_heads ||
        !tensor_has_contiguous_values(&sinks))
        return false;
    c->args.sinks = sinks.data;
    return true;
}

static bool read_scales(call_t *c) {
    PyObject *const *a = c->arguments;
    if (a[K_DESCALE] == Py_None && a[V_DESCALE] == Py_None)
        return true;
    c->args.quant = &c->quant;
    return cache_read_scales(a[K_DESCALE], a[V_DESCALE], c->args.batch, c->args.n_heads_kv,
                             c->q.device, c->records_gradients, &c->quant);
}

/* ---- Outputs ---- */

static PyObject *new_reference(PyObject *object) {
    Py_INCREF(object);
    return object;
}

/* Returns a tensor of this shape on q's device: of q's type, or as the keywords say. */
static PyObject *new_tensor(const call_t *c, const int64_t *shape, int32_t n_axes,
                            PyObject *keywords) {
    PyObject *lengths = PyTuple_New(n_axes), *result = NULL;
    for (int32_t i = 0; lengths != NULL && i < n_axes; i++)
        PyTuple_SetItem(lengths, i, PyLong_FromLongLong(shape[i]));
    PyObject *make = PyObject_GetAttr(c->q.object, host.new_empty);
    PyObject *arguments = lengths == NULL ? NULL : PyTuple_Pack(1, lengths);
    if (make != NULL && arguments != NULL)
        result = PyObject_Call(make, arguments, keywords);
    Py_XDECREF(arguments);
    Py_XDECREF(make);
    Py_XDECREF(lengths);
    return result;
}

/* Says whether an output has this shape and lies on the call's device. */
static bool fits(const call_t *c, const tensor_t *output, const int64_t *shape, int32_t n_axes) {
    if (output->n_axes != n_axes || output->device != c->q.device)
        return false;
    for (int32_t i = 0; i < n_axes; i++)
        if (output->shape[i] != shape[i])
            return false;
    return true;
}

/* Says whether q, and so a tensor like it, is contiguous. */
static bool is_contiguous(const tensor_t *tensor) {
    int64_t stride = 1;
    for (int32_t i = tensor->n_axes - 1; i >= 0; i--) {
        if (tensor->strides[i] != stride)
            return false;
        stride *= tensor->shape[i];
    }
    return true;
}

static bool set_out(call_t *c) {
    PyObject *given = c->arguments[OUT];
    const int32_t n_axes = c->q.n_axes;
    const bool is_flat = c->args.cu_seqlens_q != NULL;
    int64_t shape[4];
    tensor_t out;
    for (int32_t i = 0; i < n_axes; i++)
        shape[i] = c->q.shape[i];
    shape[n_axes - 1] = c->args.d_head_v;
    if (given != Py_None)
        c->out = new_reference(given);
    else if (c->args.d_head_v == c->args.d_head && is_contiguous(&c->q))
        c->out = PyObject_CallFunctionObjArgs(host.empty_like, c->q.object, NULL);
    else
        c->out = new_tensor(c, shape, n_axes, NULL);
    if (c->out == NULL || !tensor_read_values(c->out, c->records_gradients, &out) ||
        !fits(c, &out, shape, n_axes) || !tensor_has_contiguous_rows(&out))
        return false;
    c->args.o = tensor_of_api(&out, is_flat);
    return true;
}

/* The C API takes strides that are all 0 for those of a contiguous LSE. */
static bool has_usable_strides(const tensor_t *lse) {
    int64_t n = 1;
    for (int32_t i = 0; i < lse->n_axes; i++) {
        if (lse->strides[i] != 0)
            return true;
        n *= lse->shape[i];
    }
    return n <= 1;
}

static bool set_lse(call_t *c) {
    PyObject *given = c->arguments[LSE];
    const int32_t n_axes = c->q.n_axes - 1;
    uint32_t is_wanted = 0;
    tensor_t lse;
    if (!read_flag(c->arguments[RETURN_LSE], 1, &is_wanted))
        return false;
    if (given == Py_None && !is_wanted)
        return true;
    const int64_t padded[3] = {c->q.shape[0], tensor_last(&c->q, 2), c->q.shape[1]};
    const int64_t ragged[2] = {c->q.shape[1], c->q.shape[0]};
    const int64_t *shape = n_axes == 3 ? padded : ragged;
    c->lse =
        given != Py_None ? new_reference(given) : new_tensor(c, shape, n_axes, host.of_float32);
    if (c->lse == NULL || !tensor_read_values(c->lse, c->records_gradients, &lse) ||
        lse.dtype != FLASH_DTYPE_FP32 || !fits(c, &lse, shape, n_axes) || !has_usable_strides(&lse))
        return false;
    c->args.lse = lse.data;
    c->args.lse_stride_batch = n_axes == 3 ? lse.strides[0] : 0;
    c->args.lse_stride_head = lse.strides[n_axes - 2];
    c->args.lse_stride_seq = lse.strides[n_axes - 1];
    return true;
}

/* ---- The call ---- */

static bool read_call(call_t *c) {
    PyObject *records = PyObject_CallNoArgs(host.records_gradients);
    c->records_gradients = records != Py_False;
    Py_XDECREF(records);
    c->args = (flash_forward_args_t)FLASH_FORWARD_ARGS_INIT;
    c->args.flags = FLASH_FLAG_BROADCAST; /* strides of 0 are always meant in torch */
    if (!has_no_more(c) || !host_is_plain() || !read_tensors(c) || !read_sequences(c) ||
        !read_window(c) || !read_members(c) || !read_sinks(c) || !read_scales(c))
        return false;
    c->args.device = c->q.device == ON_CPU ? FLASH_DEVICE_CPU : FLASH_DEVICE_CUDA + c->q.device;
    c->args.dtype = c->q.dtype;
    c->args.q = tensor_of_api(&c->q, c->args.cu_seqlens_q != NULL);
    c->args.k = tensor_of_api(&c->k, c->k.n_axes == 3);
    c->args.v = tensor_of_api(&c->v, c->k.n_axes == 3);
    return set_out(c) && set_lse(c);
}

static bool run(call_t *c) {
    workspace_t workspace;
    void *stream = NULL;
    uint64_t size = 0;
    if (host.workspace_size(&c->args, NULL, &size) != FLASH_SUCCESS)
        return false;
    if (c->q.device != ON_CPU &&
        host.exchange->current_stream(EXCHANGE_CUDA, c->q.device, &stream) != 0)
        return false;
    if (!workspace_take(c->q.device, size, &workspace))
        return false;
    c->args.workspace = workspace.memory;
    c->args.workspace_size = workspace.size;
    flash_status_t status;
    Py_BEGIN_ALLOW_THREADS status = host.forward(&c->args, NULL, stream);
    Py_END_ALLOW_THREADS workspace_give_back(&workspace);
    return status == FLASH_SUCCESS;
}

PyObject *attention_forward(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    call_t call = {.arguments = arguments, .count = count};
    PyObject *result = NULL;
    (void)module;
    if (count < N_NAMED || count > host.n_arguments)
        return PyErr_Format(PyExc_TypeError, "forward() takes %d to %d arguments", N_NAMED,
                            host.n_arguments);
    if (read_call(&call) && run(&call))
        result = call.lse == NULL ? new_reference(call.out) : PyTuple_Pack(2, call.out, call.lse);
    Py_XDECREF(call.out);
    Py_XDECREF(call.lse);
    if (result != NULL)
        return result;
    PyErr_Clear();
    Py_RETURN_NONE;
}
