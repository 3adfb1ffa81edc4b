/*
 * See engine.h. A layer makes two calls for all sequences of a step: flash_kv_append() turns Q and
 * K to their positions and writes K and V into pages, and flash_forward() reads them.
 */
#include "engine.h"
#include "cache.h"
#include "support.h"

#include <stdlib.h>
#include <string.h>

/* A sequence and where its K and V are. */
typedef struct served {
    sequence_t sequence;
    int n_cached;         /* tokens whose K and V are in pages */
    int n_now;            /* that the step computes */
    int n_pages, n_whole; /* n_whole: pages that are full */
    prefix_t prefix;      /* of these */
    int32_t *pages;
} served_t;

/* The arrays of a step. */
typedef struct step {
    int64_t n_tokens, n_logits;
    int32_t batch, longest, row_ids;          /* row_ids: of the page table */
    int32_t *starts, *before, *after, *table; /* cu_seqlens_q, lengths, the page table */
    float *hidden, *inner, *qkv, *turned, *attended, *gates, *gated, *logits;
} step_t;

struct engine {
    const model_t *model;
    engine_options_t options;
    engine_observer_t observer;
    void *context;
    workers_t *workers;
    flash_executor_t executor;
    cache_t cache;
    unsigned char *k, *v; /* [layers, n_pages, PAGE_SIZE, n_heads_kv, d_head] */
    served_t **all;       /* by their numbers */
    int n_all, first;     /* before the first all are done */
    served_t **running;   /* the oldest first */
    int n_running;
    step_t step;
    void *workspace;
    uint64_t workspace_size;
    const flash_kernel_t *kernel;
    engine_counts_t counts;
};

static int pages_for(int n_tokens) {
    return (n_tokens + PAGE_SIZE - 1) / PAGE_SIZE;
}

/* ---- Making ---- */

static size_t page_bytes(const engine_t *e) {
    const sizes_t *s = &e->model->sizes;
    const size_t element = e->options.cache_dtype == FLASH_DTYPE_FP32 ? 4 : 2;
    return (size_t)(PAGE_SIZE * s->n_heads_kv * s->d_head) * element;
}

static float *rows(const engine_t *e, int64_t columns) {
    return allocate((size_t)e->options.most_tokens * (size_t)columns, sizeof(float));
}

static step_t make_step(const engine_t *e) {
    const sizes_t *s = &e->model->sizes;
    const size_t batch = (size_t)e->options.most_running;
    const size_t row_ids = (size_t)pages_for((int)s->context);
    return (step_t){.starts = allocate(batch + 1, sizeof(int32_t)),
                    .before = allocate(batch, sizeof(int32_t)),
                    .after = allocate(batch, sizeof(int32_t)),
                    .table = allocate(batch * row_ids, sizeof(int32_t)),
                    .hidden = rows(e, model_width(s)),
                    .inner = rows(e, model_width(s)),
                    .qkv = rows(e, model_qkv_width(s)),
                    .turned = rows(e, model_width(s)),
                    .attended = rows(e, model_width(s)),
                    .gates = rows(e, 2 * s->inner),
                    .gated = rows(e, s->inner),
                    .logits = allocate(batch * (size_t)s->n_tokens, sizeof(float))};
}

engine_t *engine_make(const model_t *model, const engine_options_t *options,
                      engine_observer_t observer, void *context) {
    engine_t *e = allocate(1, sizeof *e);
    const size_t bytes = (size_t)(model->sizes.n_layers * options->n_pages);
    e->model = model;
    e->options = *options;
    e->observer = observer;
    e->context = context;
    e->workers = workers_start(options->n_threads);
    e->executor = workers_executor(e->workers);
    e->cache = cache_make(options->n_pages);
    e->k = allocate(bytes, page_bytes(e));
    e->v = allocate(bytes, page_bytes(e));
    e->running = allocate((size_t)options->most_running, sizeof(served_t *));
    e->step = make_step(e);
    return e;
}

static void free_step(step_t *s) {
    void *const arrays[] = {s->starts, s->before, s->after,    s->table, s->hidden, s->inner,
                            s->qkv,    s->turned, s->attended, s->gates, s->gated,  s->logits};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        free(arrays[i]);
}

void engine_free(engine_t *e) {
    workers_end(e->workers);
    for (int i = 0; i < e->n_all; i++) {
        free(e->all[i]->sequence.tokens);
        free(e->all[i]->pages);
        free(e->all[i]);
    }
    free(e->all);
    free(e->running);
    free_step(&e->step);
    cache_free(&e->cache);
    free(e->k);
    free(e->v);
    free(e->workspace);
    free(e);
}

/* ---- Sequences ---- */

int engine_submit(engine_t *e, const int32_t *prompt, int n_prompt, int n_new, int32_t end) {
    const int most = n_prompt + n_new;
    if (n_prompt < 1 || n_new < 1 || most > e->model->sizes.context ||
        pages_for(most) > e->options.n_pages)
        return -1;
    served_t *s = allocate(1, sizeof *s);
    s->sequence = (sequence_t){.tokens = allocate((size_t)most, sizeof *s->sequence.tokens),
                               .n_tokens = n_prompt,
                               .n_prompt = n_prompt,
                               .most_tokens = most,
                               .end = end};
    memcpy(s->sequence.tokens, prompt, (size_t)n_prompt * sizeof *prompt);
    s->pages = allocate((size_t)pages_for(most), sizeof *s->pages);
    e->all = realloc(e->all, (size_t)(e->n_all + 1) * sizeof *e->all);
    if (e->all == NULL)
        fail("out of memory for sequence %d", e->n_all);
    e->all[e->n_all] = s;
    return e->n_all++;
}

const sequence_t *engine_sequence(const engine_t *e, int number) {
    return &e->all[number]->sequence;
}

const engine_counts_t *engine_counts(const engine_t *e) {
    return &e->counts;
}

const char *engine_kernel(const engine_t *e) {
    return flash_kernel_name(e->kernel);
}

static void leave_pages(engine_t *e, served_t *s) {
    while (s->n_pages > 0)
        cache_leave(&e->cache, s->pages[--s->n_pages]);
    s->n_cached = s->n_whole = 0;
    s->prefix = NO_PREFIX;
}

/* Takes the pages that have the first tokens already, but for the last token, whose logits are
 * wanted. */
static void share_pages(engine_t *e, served_t *s) {
    while (s->n_cached + PAGE_SIZE < s->sequence.n_tokens) {
        const int32_t page = cache_find(&e->cache, s->prefix, s->sequence.tokens + s->n_cached);
        if (page < 0)
            break;
        s->pages[s->n_pages++] = page;
        s->n_whole++;
        s->prefix = e->cache.pages[page].prefix;
        s->n_cached += PAGE_SIZE;
        e->counts.shared_tokens += PAGE_SIZE;
    }
}

static bool is_running(const engine_t *e, const served_t *s) {
    for (int i = 0; i < e->n_running; i++)
        if (e->running[i] == s)
            return true;
    return false;
}

/* Lets waiting sequences in, the oldest first, while their tokens so far have pages. */
static void admit(engine_t *e) {
    for (int i = e->first; i < e->n_all && e->n_running < e->options.most_running; i++) {
        served_t *s = e->all[i];
        if (s->sequence.is_done || is_running(e, s))
            continue;
        share_pages(e, s);
        if (pages_for(s->sequence.n_tokens) - s->n_pages > e->cache.n_free) {
            leave_pages(e, s);
            return;
        }
        e->running[e->n_running++] = s;
    }
}

/* Takes the pages of the tokens that the step computes. */
static bool take_pages(engine_t *e, served_t *s) {
    while (s->n_pages < pages_for(s->n_cached + s->n_now)) {
        const int32_t page = cache_take(&e->cache);
        if (page < 0)
            return false;
        s->pages[s->n_pages++] = page;
    }
    return true;
}

/* Decides what the step computes. Where pages run out, the youngest sequence gives its own back. */
static void schedule(engine_t *e) {
    int left = e->options.most_tokens;
    for (int i = 0; i < e->n_running; i++) {
        served_t *s = e->running[i];
        const int wanted = s->sequence.n_tokens - s->n_cached;
        s->n_now = wanted < left ? wanted : left;
        while (i < e->n_running && !take_pages(e, s)) {
            leave_pages(e, e->running[--e->n_running]);
            e->counts.preemptions++;
        }
        if (i < e->n_running)
            left -= s->n_now;
    }
    const int32_t in_use = e->cache.n_pages - e->cache.n_free;
    e->counts.most_pages = in_use > e->counts.most_pages ? in_use : e->counts.most_pages;
}

/* ---- A step's arrays ---- */

static void begin_step(engine_t *e) {
    const sizes_t *sizes = &e->model->sizes;
    const int64_t width = model_width(sizes);
    step_t *step = &e->step;
    step->n_tokens = step->longest = step->row_ids = step->batch = 0;
    for (int i = 0; i < e->n_running; i++)
        if (e->running[i]->n_now > 0 && e->running[i]->n_pages > step->row_ids)
            step->row_ids = e->running[i]->n_pages;
    for (int i = 0; i < e->n_running; i++) {
        const served_t *s = e->running[i];
        if (s->n_now == 0)
            continue;
        const int32_t b = step->batch++;
        step->starts[b] = (int32_t)step->n_tokens;
        step->before[b] = s->n_cached;
        step->longest = s->n_now > step->longest ? s->n_now : step->longest;
        memcpy(step->table + b * step->row_ids, s->pages, (size_t)s->n_pages * sizeof *s->pages);
        for (int j = 0; j < s->n_now; j++)
            memcpy(step->hidden + width * step->n_tokens++,
                   e->model->embedding + width * s->sequence.tokens[s->n_cached + j],
                   (size_t)width * sizeof(float));
    }
    step->starts[step->batch] = (int32_t)step->n_tokens;
}

/* ---- Attention ---- */

static flash_paging_t paging_of(const engine_t *e) {
    flash_paging_t paging = FLASH_PAGING_INIT;
    paging.page_size = PAGE_SIZE;
    paging.n_pages = e->options.n_pages;
    paging.page_table = e->step.table;
    paging.page_table_stride = e->step.row_ids;
    return paging;
}

/* Returns the pages of a layer. */
static flash_tensor_t pool(const engine_t *e, unsigned char *cache, int64_t layer) {
    const sizes_t *s = &e->model->sizes;
    unsigned char *begin = cache + (size_t)(layer * e->options.n_pages) * page_bytes(e);
    flash_tensor_t tensor = flash_tensor_bshd(begin, PAGE_SIZE, s->n_heads_kv, s->d_head);
    tensor.dtype = e->options.cache_dtype;
    return tensor;
}

/* Returns heads of Q, K or V in rows of all three: the first of them is number `head`. */
static flash_tensor_t heads_of(const engine_t *e, int64_t head) {
    const sizes_t *s = &e->model->sizes;
    flash_tensor_t tensor = FLASH_TENSOR_INIT;
    tensor.data = e->step.qkv + head * s->d_head;
    tensor.stride_seq = model_qkv_width(s);
    tensor.stride_head = s->d_head;
    return tensor;
}

static flash_tensor_t dense(const engine_t *e, float *data) {
    return flash_tensor_bshd(data, 1, e->model->sizes.n_heads, e->model->sizes.d_head);
}

static void append(engine_t *e, int64_t layer) {
    const sizes_t *s = &e->model->sizes;
    const flash_paging_t paging = paging_of(e);
    flash_rotary_t rotary = FLASH_ROTARY_INIT;
    rotary.flags = FLASH_ROTARY_INTERLEAVED;
    rotary.cos = e->model->cos;
    rotary.sin = e->model->sin;
    rotary.stride_position = s->d_head / 2;
    rotary.n_positions = s->context;
    rotary.rotary_dim = s->d_head;
    flash_kv_append_args_t args = FLASH_KV_APPEND_ARGS_INIT;
    args.dtype = FLASH_DTYPE_FP32;
    args.q = heads_of(e, 0);
    args.k_new = heads_of(e, s->n_heads);
    args.v_new = heads_of(e, s->n_heads + s->n_heads_kv);
    args.q_out = dense(e, e->step.turned);
    args.k = pool(e, e->k, layer);
    args.v = pool(e, e->v, layer);
    args.cu_seqlens_new = args.cu_seqlens_q = e->step.starts;
    args.seqused_k = e->step.before;
    args.seqused_k_out = e->step.after;
    args.batch = e->step.batch;
    args.seqlen_new = args.seqlen_q = e->step.n_tokens;
    args.n_heads = s->n_heads;
    args.n_heads_kv = s->n_heads_kv;
    args.d_head = s->d_head;
    args.paging = &paging;
    args.rotary = &rotary;
    args.executor = &e->executor;
    check(flash_kv_append(&args, NULL));
}

static void reserve_workspace(engine_t *e, const flash_forward_args_t *args) {
    uint64_t size;
    check(flash_workspace_size(args, e->kernel, &size));
    if (size <= e->workspace_size)
        return;
    free(e->workspace);
    e->workspace = allocate((size_t)size, 1);
    e->workspace_size = size;
}

static void attend(engine_t *e, int64_t layer) {
    const sizes_t *s = &e->model->sizes;
    const flash_paging_t paging = paging_of(e);
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    args.dtype = FLASH_DTYPE_FP32;
    args.flags = FLASH_FLAG_CAUSAL;
    args.q = dense(e, e->step.turned);
    args.k = pool(e, e->k, layer);
    args.v = pool(e, e->v, layer);
    args.o = dense(e, e->step.attended);
    args.cu_seqlens_q = e->step.starts;
    args.seqused_k = e->step.after;
    args.batch = e->step.batch;
    args.seqlen_q = e->step.longest;
    args.seqlen_k = e->step.row_ids * PAGE_SIZE;
    args.n_heads = s->n_heads;
    args.n_heads_kv = s->n_heads_kv;
    args.d_head = s->d_head;
    args.paging = &paging;
    args.executor = &e->executor;
    if (layer == 0) { /* what is asked and chosen here is the same for all layers */
        check(flash_select_kernel(&args, &e->kernel, NULL, 0));
        reserve_workspace(e, &args);
    }
    args.workspace = e->workspace;
    args.workspace_size = e->workspace_size;
    check(flash_forward(&args, e->kernel, NULL));
}

/* ---- The model ---- */

static void compute_layer(engine_t *e, int64_t number) {
    const model_t *m = e->model;
    const layer_t *layer = &m->layers[number];
    const int64_t width = model_width(&m->sizes), inner = m->sizes.inner;
    const int64_t qkv = model_qkv_width(&m->sizes), n = e->step.n_tokens;
    step_t *s = &e->step;
    model_normalize(m, s->hidden, n, layer->attention_norm, s->inner);
    model_multiply(e->workers, s->inner, n, layer->qkv, qkv, width, 0, s->qkv);
    const double begin = now();
    append(e, number);
    attend(e, number);
    e->counts.attention_seconds += now() - begin;
    model_multiply(e->workers, s->attended, n, layer->output, width, width, 1, s->hidden);
    model_normalize(m, s->hidden, n, layer->mlp_norm, s->inner);
    model_multiply(e->workers, s->inner, n, layer->gate_up, 2 * inner, width, 0, s->gates);
    model_gate(m, s->gates, n, s->gated);
    model_multiply(e->workers, s->gated, n, layer->down, width, inner, 1, s->hidden);
}

/* Says whether the step has computed all tokens that the sequence has. */
static bool wants_token(const served_t *s) {
    return s->n_now > 0 && s->n_cached + s->n_now == s->sequence.n_tokens;
}

/* Gathers the last rows of sequences that want a token, in place, and computes their logits. */
static void compute_logits(engine_t *e) {
    const model_t *m = e->model;
    const int64_t width = model_width(&m->sizes);
    step_t *step = &e->step;
    int32_t b = 0;
    step->n_logits = 0;
    for (int i = 0; i < e->n_running; i++) {
        b += e->running[i]->n_now > 0;
        if (wants_token(e->running[i]))
            memmove(step->hidden + width * step->n_logits++,
                    step->hidden + width * (step->starts[b] - 1), (size_t)width * sizeof(float));
    }
    model_normalize(m, step->hidden, step->n_logits, m->norm, step->inner);
    model_multiply(e->workers, step->inner, step->n_logits, m->embedding, m->sizes.n_tokens, width,
                   0, step->logits);
}

/* ---- After the model ---- */

static int32_t likeliest(const float *logits, int64_t n_tokens) {
    int32_t best = 0;
    for (int32_t i = 1; i < n_tokens; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* The pages that the step has filled can be shared from now on. */
static void keep_pages(engine_t *e, served_t *s) {
    s->n_cached += s->n_now;
    for (; (s->n_whole + 1) * PAGE_SIZE <= s->n_cached; s->n_whole++)
        s->prefix = cache_fill(&e->cache, s->pages[s->n_whole], s->prefix,
                               s->sequence.tokens + s->n_whole * PAGE_SIZE);
}

static void add_token(served_t *s, int32_t token) {
    sequence_t *q = &s->sequence;
    q->tokens[q->n_tokens++] = token;
    q->is_done = token == q->end || q->n_tokens == q->most_tokens;
}

static int number_of(const engine_t *e, const served_t *s) {
    int number = e->first;
    while (e->all[number] != s)
        number++;
    return number;
}

static void end_step(engine_t *e) {
    const int64_t n_tokens = e->model->sizes.n_tokens;
    const float *logits = e->step.logits;
    int n_left = 0;
    for (int i = 0; i < e->n_running; i++) {
        served_t *s = e->running[i];
        const bool wants = wants_token(s);
        keep_pages(e, s);
        if (wants) {
            add_token(s, likeliest(logits, n_tokens));
            if (e->observer != NULL)
                e->observer(e->context, number_of(e, s), logits);
            logits += n_tokens;
        }
        if (s->sequence.is_done)
            leave_pages(e, s);
        else
            e->running[n_left++] = s;
    }
    e->n_running = n_left;
    while (e->first < e->n_all && e->all[e->first]->sequence.is_done)
        e->first++;
}

bool engine_step(engine_t *e) {
    const double begin = now();
    admit(e);
    if (e->n_running == 0)
        return false;
    schedule(e);
    begin_step(e);
    for (int64_t i = 0; i < e->model->sizes.n_layers; i++)
        compute_layer(e, i);
    compute_logits(e);
    e->counts.tokens += e->step.n_tokens;
    end_step(e);
    e->counts.steps++;
    e->counts.seconds += now() - begin;
    return true;
}
