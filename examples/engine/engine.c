/*
 * See engine.h. What a step computes is decided here, and computed in forward.c.
 */
#include "engine.h"
#include "cache.h"
#include "support.h"

#include <stdlib.h>
#include <string.h>

/* A sequence and its pages. */
typedef struct served {
    sequence_t sequence;
    int number;
    bool is_running;
    int n_cached;         /* tokens whose K and V are in pages */
    int n_now;            /* that the step computes */
    int n_pages, n_whole; /* n_whole: pages that are full */
    prefix_t prefix;      /* of these */
    int32_t *pages;
} served_t;

struct engine {
    const model_t *model;
    limits_t limits;
    engine_observer_t observer;
    void *context;
    forward_t *forward;
    cache_t cache;
    served_t **all;     /* by their numbers */
    int n_all, first;   /* before the first all are done */
    served_t **running; /* the oldest first */
    int n_running;
    engine_counts_t counts;
};

engine_t *engine_make(const model_t *model, device_t *device, const limits_t *limits,
                      engine_observer_t observer, void *context) {
    engine_t *e = allocate(1, sizeof *e);
    e->model = model;
    e->limits = *limits;
    e->observer = observer;
    e->context = context;
    e->forward = forward_make(model, device, limits, observer != NULL);
    e->cache = cache_make(limits->n_pages);
    e->running = allocate((size_t)limits->most_running, sizeof(served_t *));
    return e;
}

void engine_free(engine_t *e) {
    for (int i = 0; i < e->n_all; i++) {
        free(e->all[i]->sequence.tokens);
        free(e->all[i]->pages);
        free(e->all[i]);
    }
    free(e->all);
    free(e->running);
    cache_free(&e->cache);
    forward_free(e->forward);
    free(e);
}

/* ---- Sequences ---- */

int engine_submit(engine_t *e, const int32_t *prompt, int n_prompt, int n_new, int32_t end) {
    const int most = n_prompt + n_new;
    if (n_prompt < 1 || n_new < 1 || most > e->model->sizes.context ||
        pages_for(most) > e->limits.n_pages)
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
    s->number = e->n_all;
    e->all[e->n_all] = s;
    return e->n_all++;
}

const sequence_t *engine_sequence(const engine_t *e, int number) {
    return &e->all[number]->sequence;
}

const engine_counts_t *engine_counts(const engine_t *e) {
    return &e->counts;
}

static void leave_pages(engine_t *e, served_t *s) {
    while (s->n_pages > 0)
        cache_leave(&e->cache, s->pages[--s->n_pages]);
    s->n_cached = s->n_whole = 0;
    s->prefix = NO_PREFIX;
    s->is_running = false;
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
    }
}

/* Lets waiting sequences in, the oldest first, while their tokens so far have pages. */
static void admit(engine_t *e) {
    for (int i = e->first; i < e->n_all && e->n_running < e->limits.most_running; i++) {
        served_t *s = e->all[i];
        if (s->sequence.is_done || s->is_running)
            continue;
        share_pages(e, s);
        if (pages_for(s->sequence.n_tokens) - s->n_pages > e->cache.n_free) {
            leave_pages(e, s);
            return;
        }
        e->counts.shared_tokens += s->n_cached;
        s->is_running = true;
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
    int left = e->limits.most_tokens;
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

/* ---- Steps ---- */

/* Says whether the step computes all tokens that the sequence has. */
static bool wants_token(const served_t *s) {
    return s->n_now > 0 && s->n_cached + s->n_now == s->sequence.n_tokens;
}

static void add_to_step(step_t *step, const served_t *s) {
    const int32_t b = step->batch++, longest_k = s->n_pages * PAGE_SIZE;
    step->before[b] = s->n_cached;
    step->longest = s->n_now > step->longest ? s->n_now : step->longest;
    step->longest_k = longest_k > step->longest_k ? longest_k : step->longest_k;
    memcpy(step->table + b * step->row_ids, s->pages, (size_t)s->n_pages * sizeof *s->pages);
    memcpy(step->tokens + step->n_tokens, s->sequence.tokens + s->n_cached,
           (size_t)s->n_now * sizeof *s->sequence.tokens);
    step->n_tokens += s->n_now;
    step->starts[b + 1] = step->n_tokens;
    if (wants_token(s))
        step->wanted[step->n_logits++] = step->n_tokens - 1;
}

static void compute(engine_t *e, step_t *step) {
    step->batch = step->n_tokens = step->n_logits = step->longest = step->longest_k = 0;
    step->starts[0] = 0;
    for (int i = 0; i < e->n_running; i++)
        if (e->running[i]->n_now > 0)
            add_to_step(step, e->running[i]);
    e->counts.tokens += step->n_tokens;
    forward_run(e->forward);
    e->counts.attention_seconds += step->attention_seconds;
    e->counts.kernel = flash_kernel_name(step->kernel);
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

static void end_step(engine_t *e, const step_t *step) {
    int n_left = 0, n_chosen = 0;
    for (int i = 0; i < e->n_running; i++) {
        served_t *s = e->running[i];
        const bool wants = wants_token(s);
        keep_pages(e, s);
        if (wants) {
            add_token(s, step->chosen[n_chosen]);
            if (e->observer != NULL)
                e->observer(e->context, s->number,
                            step->logits + n_chosen * e->model->sizes.n_tokens);
            n_chosen++;
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
    step_t *step = forward_step(e->forward);
    admit(e);
    if (e->n_running == 0)
        return false;
    schedule(e);
    compute(e, step);
    end_step(e, step);
    e->counts.steps++;
    e->counts.seconds += now() - begin;
    return true;
}
