/*
 * See model.h.
 */
#include "model.h"
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

int64_t model_width(const sizes_t *s) {
    return s->n_heads * s->d_head;
}

int64_t model_qkv_width(const sizes_t *s) {
    return (s->n_heads + 2 * s->n_heads_kv) * s->d_head;
}

/* ---- Weights ---- */

static matrix_t zeros(model_t *m, int64_t rows, int64_t columns) {
    const size_t count = (size_t)rows * (size_t)columns;
    return (matrix_t){list_add(&m->memory, allocate(count, sizeof(float))), rows, columns};
}

static void make_rotary(model_t *m) {
    const int64_t pairs = m->sizes.d_head / 2;
    m->cos = zeros(m, m->sizes.context, pairs);
    m->sin = zeros(m, m->sizes.context, pairs);
    for (int64_t position = 0; position < m->sizes.context; position++)
        for (int64_t i = 0; i < pairs; i++) {
            const double power = 2.0 * (double)i / (double)m->sizes.d_head;
            const double angle = (double)position * pow(m->sizes.rotary_base, -power);
            ((float *)m->cos.data)[position * pairs + i] = (float)cos(angle);
            ((float *)m->sin.data)[position * pairs + i] = (float)sin(angle);
        }
}

static model_t *make_model(const sizes_t *s) {
    const int64_t width = model_width(s);
    model_t *m = allocate(1, sizeof *m);
    m->sizes = *s;
    m->layers = allocate((size_t)s->n_layers, sizeof *m->layers);
    for (int64_t i = 0; i < s->n_layers; i++)
        m->layers[i] = (layer_t){.attention_norm = zeros(m, 1, width),
                                 .qkv = zeros(m, model_qkv_width(s), width),
                                 .output = zeros(m, width, width),
                                 .mlp_norm = zeros(m, 1, width),
                                 .gate_up = zeros(m, 2 * s->inner, width),
                                 .down = zeros(m, width, s->inner)};
    m->norm = zeros(m, 1, width);
    m->embedding = zeros(m, s->n_tokens, width);
    make_rotary(m);
    return m;
}

void model_free(model_t *m) {
    list_free(&m->memory, free);
    free(m->layers);
    free(m);
}

/* ---- On a device ---- */

static matrix_t place(device_t *device, const matrix_t *m, int32_t dtype) {
    return (matrix_t){device->place(device, m->data, m->rows * m->columns, dtype), m->rows,
                      m->columns};
}

static layer_t place_layer(device_t *d, const layer_t *l) {
    return (layer_t){.attention_norm = place(d, &l->attention_norm, FLASH_DTYPE_FP32),
                     .qkv = place(d, &l->qkv, d->dtype),
                     .output = place(d, &l->output, d->dtype),
                     .mlp_norm = place(d, &l->mlp_norm, FLASH_DTYPE_FP32),
                     .gate_up = place(d, &l->gate_up, d->dtype),
                     .down = place(d, &l->down, d->dtype)};
}

model_t model_place(const model_t *m, device_t *device) {
    layer_t *layers = allocate((size_t)m->sizes.n_layers, sizeof *layers);
    for (int64_t i = 0; i < m->sizes.n_layers; i++)
        layers[i] = place_layer(device, &m->layers[i]);
    return (model_t){.sizes = m->sizes,
                     .layers = layers,
                     .norm = place(device, &m->norm, FLASH_DTYPE_FP32),
                     .embedding = place(device, &m->embedding, device->dtype),
                     .cos = place(device, &m->cos, FLASH_DTYPE_FP32),
                     .sin = place(device, &m->sin, FLASH_DTYPE_FP32)};
}

/* ---- From a file ---- */

/* The embedding turns whole heads, by angles that grow with the position alone. */
static void check_rotary(const gguf_t *file, int64_t d_head) {
    static const char TURNED[] = "llama.rope.dimension_count", SCALED[] = "llama.rope.scaling.type";
    if (gguf_has(file, TURNED) && gguf_count(file, TURNED) != d_head)
        fail("%s is %d, not all %d of a head", TURNED, (int)gguf_count(file, TURNED), (int)d_head);
    if (gguf_has(file, SCALED) && !text_is(gguf_text(file, SCALED), "none"))
        fail("%s is %.*s, not none", SCALED, SHOWN(gguf_text(file, SCALED)));
}

static sizes_t read_sizes(const gguf_t *file, int64_t n_tokens) {
    const text_t architecture = gguf_text(file, "general.architecture");
    const int64_t width = gguf_count(file, "llama.embedding_length");
    sizes_t s = {.n_layers = gguf_count(file, "llama.block_count"),
                 .n_heads = gguf_count(file, "llama.attention.head_count"),
                 .n_heads_kv = gguf_count(file, "llama.attention.head_count_kv"),
                 .inner = gguf_rows(file, "blk.0.ffn_gate.weight", width),
                 .n_tokens = n_tokens,
                 .context = gguf_count(file, "llama.context_length"),
                 .epsilon = (float)gguf_number(file, "llama.attention.layer_norm_rms_epsilon"),
                 .rotary_base = gguf_number(file, "llama.rope.freq_base")};
    if (!text_is(architecture, "llama"))
        fail("the model is %.*s, not llama", SHOWN(architecture));
    if (s.n_heads % s.n_heads_kv != 0 || width % (2 * s.n_heads) != 0)
        fail("the model has %d heads, %d of K and V, and width %d", (int)s.n_heads,
             (int)s.n_heads_kv, (int)width);
    s.d_head = width / s.n_heads;
    check_rotary(file, s.d_head);
    return s;
}

/* Reads some rows of a matrix. */
static void read_rows(const gguf_t *file, const char *name, const matrix_t *m, int64_t first,
                      int64_t rows) {
    gguf_read(file, name, rows, m->columns, (float *)m->data + first * m->columns);
}

static void read_layer(const gguf_t *file, const sizes_t *s, int number, const layer_t *layer) {
    const int64_t width = model_width(s), of_kv = s->n_heads_kv * s->d_head;
    const struct {
        const char *name;
        const matrix_t *to;
        int64_t first, rows;
    } parts[] = {
        {"attn_norm", &layer->attention_norm, 0, 1},
        {"attn_q", &layer->qkv, 0, width},
        {"attn_k", &layer->qkv, width, of_kv},
        {"attn_v", &layer->qkv, width + of_kv, of_kv},
        {"attn_output", &layer->output, 0, width},
        {"ffn_norm", &layer->mlp_norm, 0, 1},
        {"ffn_gate", &layer->gate_up, 0, s->inner},
        {"ffn_up", &layer->gate_up, s->inner, s->inner},
        {"ffn_down", &layer->down, 0, width},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s.weight", number, parts[i].name);
        read_rows(file, name, parts[i].to, parts[i].first, parts[i].rows);
    }
}

model_t *model_read(const gguf_t *file, int64_t n_tokens) {
    const sizes_t sizes = read_sizes(file, n_tokens);
    model_t *m = make_model(&sizes);
    for (int64_t i = 0; i < sizes.n_layers; i++)
        read_layer(file, &sizes, (int)i, &m->layers[i]);
    read_rows(file, "output_norm.weight", &m->norm, 0, 1);
    read_rows(file, "token_embd.weight", &m->embedding, 0, n_tokens);
    gguf_check_all_read(file);
    return m;
}

/* ---- Random weights ---- */

/* Numbers of a mean square of scale^2, or beside 1 where they multiply a norm. They are multiples
 * of 1 / 1024, which have the same value in fp16. */
static void fill(const matrix_t *m, double scale, double beside) {
    for (int64_t i = 0; i < m->rows * m->columns; i++) {
        const double x = beside + scale * 1.7 * (2.0 * rand() / RAND_MAX - 1);
        ((float *)m->data)[i] = (float)(round(1024 * x) / 1024);
    }
}

model_t *model_random(const sizes_t *s) {
    model_t *m = make_model(s);
    const double of_width = 1 / sqrt((double)model_width(s)), of_inner = 1 / sqrt((double)s->inner);
    for (int64_t i = 0; i < s->n_layers; i++) {
        fill(&m->layers[i].attention_norm, 0.1, 1);
        fill(&m->layers[i].qkv, 2 * of_width, 0);
        fill(&m->layers[i].output, of_width, 0);
        fill(&m->layers[i].mlp_norm, 0.1, 1);
        fill(&m->layers[i].gate_up, of_width, 0);
        fill(&m->layers[i].down, of_inner, 0);
    }
    fill(&m->norm, 0.1, 1);
    fill(&m->embedding, 1, 0);
    return m;
}
