/*
 * Compares the engine with a plain model, in float64 and one token after the other: a small model
 * of random weights, random prompts that begin alike or not, and so few pages that sequences must
 * give theirs back.
 *
 *     check [--device cpu|cuda] [STEPS [SEED]]
 *
 * It is compiled as the engine is (README), without main.c and tokenizer.c.
 */
#include "cache.h"
#include "engine.h"
#include "support.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SEQUENCES = 4096, N_BLOCKS = 2, MOST_PROMPT = 150, MOST_NEW = 40 };
static const sizes_t SIZES = {.n_layers = 2,
                              .n_heads = 6,
                              .n_heads_kv = 2,
                              .d_head = 16,
                              .inner = 80,
                              .n_tokens = 97,
                              .context = MOST_PROMPT + MOST_NEW,
                              .epsilon = 1e-5f,
                              .rotary_base = 10000};
enum { WIDTH = 96, QKV = 160, D_HEAD = 16, INNER = 80, CONTEXT = 190, LAYERS = 2 };

/* ---- The plain model ---- */

/* Its K and V of one sequence. */
typedef struct plain {
    int n_tokens;
    double k[LAYERS][CONTEXT][2 * D_HEAD], v[LAYERS][CONTEXT][2 * D_HEAD];
} plain_t;

typedef struct checks {
    const model_t *model;
    engine_t *engine;
    plain_t *plain[MOST_SEQUENCES];
    int64_t n_logits;
    double largest; /* deviation of a logit, NaN if there was one */
} checks_t;

static void multiply(const matrix_t *matrix, const double *x, double *y) {
    const float *weights = matrix->data;
    for (int64_t i = 0; i < matrix->rows; i++) {
        y[i] = 0;
        for (int64_t j = 0; j < matrix->columns; j++)
            y[i] += (double)weights[i * matrix->columns + j] * x[j];
    }
}

static void normalize(const double *x, const matrix_t *norm, double *y) {
    const float *weights = norm->data;
    double sum = 0;
    for (int i = 0; i < WIDTH; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < WIDTH; i++)
        y[i] = x[i] / sqrt(sum / WIDTH + (double)SIZES.epsilon) * (double)weights[i];
}

static void turn(double *head, int position) {
    for (int i = 0; i < D_HEAD; i += 2) {
        const double angle = position * pow(SIZES.rotary_base, -(double)i / D_HEAD);
        const double x = head[i], y = head[i + 1];
        head[i] = x * cos(angle) - y * sin(angle);
        head[i + 1] = x * sin(angle) + y * cos(angle);
    }
}

/* Attends to all tokens up to the last one. */
static void attend(const plain_t *p, int layer, const double *q, int n_tokens, double *o) {
    for (int head = 0; head < 6; head++) {
        const int at = head / 3 * D_HEAD;
        double weights[CONTEXT], sum = 0;
        for (int j = 0; j < n_tokens; j++) {
            double score = 0;
            for (int i = 0; i < D_HEAD; i++)
                score += q[head * D_HEAD + i] * p->k[layer][j][at + i];
            sum += weights[j] = exp(score / sqrt(D_HEAD));
        }
        for (int i = 0; i < D_HEAD; i++) {
            o[head * D_HEAD + i] = 0;
            for (int j = 0; j < n_tokens; j++)
                o[head * D_HEAD + i] += weights[j] / sum * p->v[layer][j][at + i];
        }
    }
}

static void plain_layer(plain_t *p, const layer_t *layer, int number, double *hidden) {
    double x[WIDTH], qkv[QKV], o[WIDTH], y[WIDTH], gates[2 * INNER];
    const int position = p->n_tokens;
    normalize(hidden, &layer->attention_norm, x);
    multiply(&layer->qkv, x, qkv);
    for (int head = 0; head < 8; head++) /* of Q and of K */
        turn(qkv + head * D_HEAD, position);
    memcpy(p->k[number][position], qkv + WIDTH, sizeof p->k[0][0]);
    memcpy(p->v[number][position], qkv + WIDTH + 2 * D_HEAD, sizeof p->v[0][0]);
    attend(p, number, qkv, position + 1, o);
    multiply(&layer->output, o, y);
    for (int i = 0; i < WIDTH; i++)
        hidden[i] += y[i];
    normalize(hidden, &layer->mlp_norm, x);
    multiply(&layer->gate_up, x, gates);
    for (int i = 0; i < INNER; i++)
        gates[i] = gates[i] / (1 + exp(-gates[i])) * gates[INNER + i];
    multiply(&layer->down, gates, y);
    for (int i = 0; i < WIDTH; i++)
        hidden[i] += y[i];
}

/* Computes the next token; hidden becomes its last state. */
static void plain_token(plain_t *p, const model_t *model, int32_t token, double *hidden) {
    const float *embedding = model->embedding.data;
    for (int i = 0; i < WIDTH; i++)
        hidden[i] = (double)embedding[token * WIDTH + i];
    for (int i = 0; i < LAYERS; i++)
        plain_layer(p, &model->layers[i], i, hidden);
    p->n_tokens++;
}

/* Compares the logits from which the sequence's last token was chosen. */
static void compare(void *context, int number, const float *logits) {
    checks_t *c = context;
    const sequence_t *s = engine_sequence(c->engine, number);
    double hidden[WIDTH], last[WIDTH], expected[128];
    if (c->plain[number] == NULL)
        c->plain[number] = allocate(1, sizeof *c->plain[number]);
    while (c->plain[number]->n_tokens < s->n_tokens - 1)
        plain_token(c->plain[number], c->model, s->tokens[c->plain[number]->n_tokens], hidden);
    normalize(hidden, &c->model->norm, last);
    multiply(&c->model->embedding, last, expected);
    for (int i = 0; i < SIZES.n_tokens; i++) {
        const double deviation = fabs((double)logits[i] - expected[i]);
        if (deviation > c->largest || isnan(deviation)) /* NaN stays */
            c->largest = deviation;
    }
    c->n_logits += SIZES.n_tokens;
    if (s->is_done)
        free(c->plain[number]);
}

/* ---- Random sequences ---- */

static int below(int n) {
    return rand() % n;
}

/* Half of the prompts begin with whole pages of few kinds, so that many begin alike, and the same
 * tokens lie behind others, too. */
static int submit(engine_t *engine, int32_t blocks[N_BLOCKS][PAGE_SIZE]) {
    int32_t prompt[MOST_PROMPT];
    const int n_prompt = 1 + below(MOST_PROMPT);
    for (int i = 0; i < n_prompt; i++)
        prompt[i] = below((int)SIZES.n_tokens);
    for (int i = 0; i + PAGE_SIZE <= n_prompt && below(4) > 0; i += PAGE_SIZE)
        memcpy(prompt + i, blocks[below(N_BLOCKS)], sizeof blocks[0]);
    return engine_submit(engine, prompt, n_prompt, 1 + below(MOST_NEW), 7);
}

int main(int argc, char **argv) {
    static checks_t checks;
    int32_t blocks[N_BLOCKS][PAGE_SIZE];
    const char *device_name = device_argument(&argc, &argv);
    const int n_steps = argc > 1 ? atoi(argv[1]) : 1000;
    device_t *device = device_open(device_name, 3);
    const limits_t limits = {
        .n_pages = 32, .cache_dtype = device->dtype, .most_running = 6, .most_tokens = 64};
    /* Logits are about 10. fp16 has 11 bits, and each value is rounded many times. */
    const double most = device->dtype == FLASH_DTYPE_FP32 ? 1e-3 : 0.5;
    srand(argc > 2 ? (unsigned)atoi(argv[2]) : 1);
    for (int i = 0; i < N_BLOCKS * PAGE_SIZE; i++)
        blocks[i / PAGE_SIZE][i % PAGE_SIZE] = below((int)SIZES.n_tokens);
    model_t *model = model_random(&SIZES);
    checks.model = model;
    checks.engine = engine_make(model, device, &limits, compare, &checks);
    int n_sequences = 0;
    for (int i = 0; i < n_steps; i++) {
        if (below(6) == 0 && n_sequences < MOST_SEQUENCES)
            n_sequences = submit(checks.engine, blocks) + 1;
        engine_step(checks.engine);
    }
    while (engine_step(checks.engine))
        continue;
    const engine_counts_t counts = *engine_counts(checks.engine);
    engine_free(checks.engine);
    device->close(device);
    model_free(model);
    printf("%" PRId64 " steps of %d sequences, %" PRId64 " tokens, %" PRId64 " shared, %" PRId64
           " times given back; %" PRId64 " logits deviate by %.1e at most\n",
           counts.steps, n_sequences, counts.tokens, counts.shared_tokens, counts.preemptions,
           checks.n_logits, checks.largest);
    const bool all_happened =
        counts.shared_tokens > 0 && counts.preemptions > 0 && checks.n_logits > 0;
    return all_happened && checks.largest < most ? EXIT_SUCCESS : EXIT_FAILURE;
}
