/*
 * See forward.h. A layer makes two calls for all sequences of a step: flash_kv_append() turns Q and
 * K to their positions and writes K and V into pages, and flash_forward() reads them.
 */
#include "forward.h"
#include "cache.h"
#include "support.h"

#include <stdlib.h>

struct forward {
    model_t model; /* on the device */
    device_t *device;
    limits_t limits;
    unsigned char *k, *v; /* [layers, n_pages, PAGE_SIZE, n_heads_kv, d_head] */
    step_t step;          /* the host's arrays */
    step_t on_device;     /* the device's, which lie behind each other likewise */
    int32_t *after;       /* [batch]: tokens in the cache then */
    float *hidden;
    void *inner, *qkv, *turned, *attended, *gates, *gated;
    void *workspace;
    uint64_t workspace_size;
};

int32_t pages_for(int64_t n_tokens) {
    return (int32_t)((n_tokens + PAGE_SIZE - 1) / PAGE_SIZE);
}

/* ---- Attention ---- */

static size_t bytes_of(int32_t dtype) {
    return dtype == FLASH_DTYPE_FP32 ? 4 : 2;
}

static size_t layer_bytes(const forward_t *f) {
    const sizes_t *s = &f->model.sizes;
    return (size_t)(f->limits.n_pages * PAGE_SIZE * s->n_heads_kv * s->d_head) *
           bytes_of(f->limits.cache_dtype);
}

static flash_paging_t paging_of(const forward_t *f) {
    flash_paging_t paging = FLASH_PAGING_INIT;
    paging.page_size = PAGE_SIZE;
    paging.n_pages = f->limits.n_pages;
    paging.page_table = f->on_device.table;
    paging.page_table_stride = f->step.row_ids;
    return paging;
}

/* Returns the pages of a layer. */
static flash_tensor_t pool(const forward_t *f, unsigned char *cache, int layer) {
    const sizes_t *s = &f->model.sizes;
    flash_tensor_t tensor = flash_tensor_bshd(cache + (size_t)layer * layer_bytes(f), PAGE_SIZE,
                                              s->n_heads_kv, s->d_head);
    tensor.dtype = f->limits.cache_dtype;
    return tensor;
}

/* Returns heads of Q, K or V in rows of all three: the first of them is number `head`. */
static flash_tensor_t heads_of(const forward_t *f, int64_t head) {
    const size_t at = (size_t)(head * f->model.sizes.d_head) * bytes_of(f->device->dtype);
    flash_tensor_t tensor = FLASH_TENSOR_INIT;
    tensor.data = (unsigned char *)f->qkv + at;
    tensor.stride_seq = model_qkv_width(&f->model.sizes);
    tensor.stride_head = f->model.sizes.d_head;
    return tensor;
}

static flash_tensor_t dense(const forward_t *f, void *data) {
    return flash_tensor_bshd(data, 1, f->model.sizes.n_heads, f->model.sizes.d_head);
}

static void append(forward_t *f, int layer) {
    const sizes_t *s = &f->model.sizes;
    const flash_paging_t paging = paging_of(f);
    flash_rotary_t rotary = FLASH_ROTARY_INIT;
    rotary.dtype = FLASH_DTYPE_FP32;
    rotary.flags = FLASH_ROTARY_INTERLEAVED;
    rotary.cos = f->model.cos.data;
    rotary.sin = f->model.sin.data;
    rotary.stride_position = s->d_head / 2;
    rotary.n_positions = s->context;
    rotary.rotary_dim = s->d_head;
    flash_kv_append_args_t args = FLASH_KV_APPEND_ARGS_INIT;
    args.device = f->device->number;
    args.dtype = f->device->dtype;
    args.q = heads_of(f, 0);
    args.k_new = heads_of(f, s->n_heads);
    args.v_new = heads_of(f, s->n_heads + s->n_heads_kv);
    args.q_out = dense(f, f->turned);
    args.k = pool(f, f->k, layer);
    args.v = pool(f, f->v, layer);
    args.cu_seqlens_new = args.cu_seqlens_q = f->on_device.starts;
    args.seqused_k = f->on_device.before;
    args.seqused_k_out = f->after;
    args.batch = f->step.batch;
    args.seqlen_new = args.seqlen_q = f->step.n_tokens;
    args.n_heads = s->n_heads;
    args.n_heads_kv = s->n_heads_kv;
    args.d_head = s->d_head;
    args.paging = &paging;
    args.rotary = &rotary;
    args.executor = f->device->executor;
    check(flash_kv_append(&args, f->device->stream));
}

static flash_forward_args_t attention_of(const forward_t *f, int layer,
                                         const flash_paging_t *paging) {
    const sizes_t *s = &f->model.sizes;
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    args.device = f->device->number;
    args.dtype = f->device->dtype;
    args.flags = FLASH_FLAG_CAUSAL;
    args.q = dense(f, f->turned);
    args.k = pool(f, f->k, layer);
    args.v = pool(f, f->v, layer);
    args.o = dense(f, f->attended);
    args.cu_seqlens_q = f->on_device.starts;
    args.seqused_k = f->after;
    args.batch = f->step.batch;
    args.seqlen_q = f->step.longest;
    args.seqlen_k = f->step.longest_k;
    args.n_heads = s->n_heads;
    args.n_heads_kv = s->n_heads_kv;
    args.d_head = s->d_head;
    args.paging = paging;
    args.executor = f->device->executor;
    args.workspace = f->workspace;
    args.workspace_size = f->workspace_size;
    return args;
}

static void attend(forward_t *f, int layer) {
    const flash_paging_t paging = paging_of(f);
    const flash_forward_args_t args = attention_of(f, layer, &paging);
    check(flash_forward(&args, f->step.kernel, f->device->stream));
}

/* Chooses the step's kernel, and makes the workspace larger where it needs more. Graphs go on using
 * the one that they were recorded with, which the device keeps. */
static void prepare(forward_t *f) {
    const flash_paging_t paging = paging_of(f);
    const flash_forward_args_t args = attention_of(f, 0, &paging);
    uint64_t size;
    check(flash_select_kernel(&args, &f->step.kernel, NULL, 0));
    check(flash_workspace_size(&args, f->step.kernel, &size));
    if (size <= f->workspace_size)
        return;
    f->workspace_size = 2 * size;
    f->workspace = f->device->allocate(f->device, (size_t)f->workspace_size);
}

/* ---- The model ---- */

static void compute_layer(forward_t *f, int number) {
    device_t *d = f->device;
    const layer_t *layer = &f->model.layers[number];
    const float epsilon = f->model.sizes.epsilon;
    const int64_t n = f->step.n_tokens;
    d->normalize(d, f->hidden, NULL, n, &layer->attention_norm, epsilon, f->inner);
    d->multiply(d, f->inner, n, &layer->qkv, IN_TYPE, f->qkv);
    d->note(d, 2 * number);
    append(f, number);
    attend(f, number);
    d->note(d, 2 * number + 1);
    d->multiply(d, f->attended, n, &layer->output, ADDED_TO_FP32, f->hidden);
    d->normalize(d, f->hidden, NULL, n, &layer->mlp_norm, epsilon, f->inner);
    d->multiply(d, f->inner, n, &layer->gate_up, IN_TYPE, f->gates);
    d->gate(d, f->gates, n, f->model.sizes.inner, f->gated);
    d->multiply(d, f->gated, n, &layer->down, ADDED_TO_FP32, f->hidden);
}

static void compute(void *forward) {
    forward_t *f = forward;
    device_t *d = f->device;
    const int64_t n = f->step.n_logits;
    d->embed(d, f->on_device.tokens, f->step.n_tokens, &f->model.embedding, f->hidden);
    for (int i = 0; i < f->model.sizes.n_layers; i++)
        compute_layer(f, i);
    if (n == 0)
        return;
    d->normalize(d, f->hidden, f->on_device.wanted, n, &f->model.norm, f->model.sizes.epsilon,
                 f->inner);
    d->multiply(d, f->inner, n, &f->model.embedding, IN_FP32, f->on_device.logits);
    d->choose(d, f->on_device.logits, n, f->model.sizes.n_tokens, f->on_device.chosen);
}

/* ---- A step ---- */

/* Makes a step of single tokens one of 1, 2, 4, ... sequences with any number of keys, so that few
 * shapes come again and again. The sequences that it adds have no tokens; what is computed in
 * their stead nobody looks at. Returns the shape. */
static int pad(forward_t *f) {
    step_t *s = &f->step;
    int shape = 0;
    if (!f->device->records || s->longest > 1)
        return -1;
    while (1 << shape < s->batch)
        shape++;
    const int32_t batch = 1 << shape < f->limits.most_running ? 1 << shape : f->limits.most_running;
    for (int32_t b = s->batch; b < batch; b++) {
        s->starts[b + 1] = s->n_tokens;
        s->before[b] = s->tokens[b] = s->wanted[b] = 0;
    }
    s->batch = s->n_tokens = s->n_logits = batch;
    s->longest_k = s->row_ids * PAGE_SIZE;
    return shape;
}

void forward_run(forward_t *f) {
    device_t *d = f->device;
    step_t *s = &f->step;
    const int shape = pad(f);
    const size_t n = (size_t)(s->table - s->tokens) + (size_t)s->batch * (size_t)s->row_ids;
    const size_t n_logits = (size_t)s->n_logits, row = (size_t)f->model.sizes.n_tokens;
    prepare(f);
    d->copy(d, f->on_device.tokens, s->tokens, n * sizeof *s->tokens);
    d->run(d, shape, compute, f);
    d->copy(d, s->chosen, f->on_device.chosen, n_logits * sizeof *s->chosen);
    if (s->logits != NULL)
        d->copy(d, s->logits, f->on_device.logits, n_logits * row * sizeof *s->logits);
    d->wait(d);
    s->attention_seconds = 0;
    for (int i = 0; i < f->model.sizes.n_layers; i++)
        s->attention_seconds += d->seconds(d, 2 * i, 2 * i + 1);
}

step_t *forward_step(forward_t *f) {
    return &f->step;
}

/* ---- Making ---- */

typedef void *(*allocate_t)(device_t *device, size_t bytes);

/* The arrays that go to the device lie behind each other, the table last, since little of it is
 * used. */
static step_t make_step(const forward_t *f, allocate_t allocate_on, bool with_logits) {
    const limits_t *l = &f->limits;
    const int64_t context = f->model.sizes.context, most_k = (int64_t)l->n_pages * PAGE_SIZE;
    const int32_t row_ids = pages_for(context < most_k ? context : most_k);
    const size_t n = (size_t)(l->most_tokens + l->most_running * (3 + row_ids) + 1);
    const size_t batch = (size_t)l->most_running;
    step_t s = {.row_ids = row_ids, .tokens = allocate_on(f->device, n * sizeof *s.tokens)};
    s.starts = s.tokens + l->most_tokens;
    s.before = s.starts + l->most_running + 1;
    s.wanted = s.before + l->most_running;
    s.table = s.wanted + l->most_running;
    s.chosen = allocate_on(f->device, batch * sizeof *s.chosen);
    if (with_logits)
        s.logits = allocate_on(f->device, batch * (size_t)f->model.sizes.n_tokens * sizeof(float));
    return s;
}

static void *make_rows(const forward_t *f, int64_t columns, int32_t dtype) {
    const int64_t count = f->limits.most_tokens * columns;
    return f->device->allocate(f->device, (size_t)count * bytes_of(dtype));
}

static void make_arrays(forward_t *f, bool with_logits) {
    device_t *d = f->device;
    const sizes_t *s = &f->model.sizes;
    f->step = make_step(f, d->allocate_host, with_logits);
    f->on_device = make_step(f, d->allocate, true);
    f->after = d->allocate(d, (size_t)f->limits.most_running * sizeof *f->after);
    f->hidden = make_rows(f, model_width(s), FLASH_DTYPE_FP32);
    f->inner = make_rows(f, model_width(s), d->dtype);
    f->qkv = make_rows(f, model_qkv_width(s), d->dtype);
    f->turned = make_rows(f, model_width(s), d->dtype);
    f->attended = make_rows(f, model_width(s), d->dtype);
    f->gates = make_rows(f, 2 * s->inner, d->dtype);
    f->gated = make_rows(f, s->inner, d->dtype);
    f->k = d->allocate(d, (size_t)s->n_layers * layer_bytes(f));
    f->v = d->allocate(d, (size_t)s->n_layers * layer_bytes(f));
}

forward_t *forward_make(const model_t *model, device_t *device, const limits_t *limits,
                        bool with_logits) {
    forward_t *f = allocate(1, sizeof *f);
    if (2 * model->sizes.n_layers > MOST_MOMENTS)
        fail("the model has %d layers, more than %d", (int)model->sizes.n_layers, MOST_MOMENTS / 2);
    f->device = device;
    f->limits = *limits;
    f->model = model_place(model, device);
    make_arrays(f, with_logits);
    return f;
}

void forward_free(forward_t *f) {
    free(f->model.layers);
    free(f);
}
