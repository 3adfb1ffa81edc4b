/*
 * See model.h.
 */
#include "model.h"
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t model_width(const sizes_t *s) {
    return s->n_heads * s->d_head;
}

int64_t model_qkv_width(const sizes_t *s) {
    return (s->n_heads + 2 * s->n_heads_kv) * s->d_head;
}

/* ---- Weights ---- */

static float *numbers(int64_t rows, int64_t columns) {
    return allocate((size_t)rows * (size_t)columns, sizeof(float));
}

static void make_rotary(model_t *m) {
    const int64_t pairs = m->sizes.d_head / 2;
    m->cos = numbers(m->sizes.context, pairs);
    m->sin = numbers(m->sizes.context, pairs);
    for (int64_t position = 0; position < m->sizes.context; position++)
        for (int64_t i = 0; i < pairs; i++) {
            const double power = 2.0 * (double)i / (double)m->sizes.d_head;
            const double angle = (double)position * pow(m->sizes.rotary_base, -power);
            m->cos[position * pairs + i] = (float)cos(angle);
            m->sin[position * pairs + i] = (float)sin(angle);
        }
}

static model_t *make_model(const sizes_t *s) {
    const int64_t width = model_width(s);
    model_t *m = allocate(1, sizeof *m);
    m->sizes = *s;
    m->layers = allocate((size_t)s->n_layers, sizeof *m->layers);
    for (int64_t i = 0; i < s->n_layers; i++)
        m->layers[i] = (layer_t){
            .attention_norm = numbers(1, width),
            .qkv = numbers(model_qkv_width(s), width),
            .output = numbers(width, width),
            .mlp_norm = numbers(1, width),
            .gate_up = numbers(2 * s->inner, width),
            .down = numbers(width, s->inner),
        };
    m->norm = numbers(1, width);
    m->embedding = numbers(s->n_tokens, width);
    make_rotary(m);
    return m;
}

void model_free(model_t *m) {
    for (int64_t i = 0; i < m->sizes.n_layers; i++) {
        free(m->layers[i].attention_norm);
        free(m->layers[i].qkv);
        free(m->layers[i].output);
        free(m->layers[i].mlp_norm);
        free(m->layers[i].gate_up);
        free(m->layers[i].down);
    }
    free(m->layers);
    free(m->norm);
    free(m->embedding);
    free(m->cos);
    free(m->sin);
    free(m);
}

/* ---- From a file ---- */

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
    if (architecture.size != 5 || memcmp(architecture.bytes, "llama", 5) != 0)
        fail("the model is %.*s, not llama", (int)architecture.size, architecture.bytes);
    if (s.n_heads % s.n_heads_kv != 0 || width % (2 * s.n_heads) != 0)
        fail("the model has %d heads, %d of K and V, and width %d", (int)s.n_heads,
             (int)s.n_heads_kv, (int)width);
    s.d_head = width / s.n_heads;
    return s;
}

static void read_layer(const gguf_t *file, const sizes_t *s, int number, const layer_t *layer) {
    const int64_t width = model_width(s), of_kv = s->n_heads_kv * s->d_head;
    const struct {
        const char *name;
        int64_t rows, columns;
        float *to;
    } parts[] = {
        {"attn_norm", 1, width, layer->attention_norm},
        {"attn_q", width, width, layer->qkv},
        {"attn_k", of_kv, width, layer->qkv + width * width},
        {"attn_v", of_kv, width, layer->qkv + (width + of_kv) * width},
        {"attn_output", width, width, layer->output},
        {"ffn_norm", 1, width, layer->mlp_norm},
        {"ffn_gate", s->inner, width, layer->gate_up},
        {"ffn_up", s->inner, width, layer->gate_up + s->inner * width},
        {"ffn_down", width, s->inner, layer->down},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s.weight", number, parts[i].name);
        gguf_read(file, name, parts[i].rows, parts[i].columns, parts[i].to);
    }
}

model_t *model_read(const gguf_t *file, int64_t n_tokens) {
    const sizes_t sizes = read_sizes(file, n_tokens);
    const int64_t width = model_width(&sizes);
    model_t *m = make_model(&sizes);
    for (int64_t i = 0; i < sizes.n_layers; i++)
        read_layer(file, &sizes, (int)i, &m->layers[i]);
    gguf_read(file, "output_norm.weight", 1, width, m->norm);
    gguf_read(file, "token_embd.weight", n_tokens, width, m->embedding);
    return m;
}

/* ---- Random weights ---- */

/* Numbers of a mean square of scale^2, or beside 1 where they multiply a norm. */
static void fill(float *to, int64_t rows, int64_t columns, double scale, double beside) {
    for (int64_t i = 0; i < rows * columns; i++)
        to[i] =
            (float)(round(1024 * (beside + scale * 1.7 * (2.0 * rand() / RAND_MAX - 1))) / 1024);
}

model_t *model_random(const sizes_t *s) {
    const int64_t width = model_width(s);
    const double of_width = 1 / sqrt((double)width), of_inner = 1 / sqrt((double)s->inner);
    model_t *m = make_model(s);
    for (int64_t i = 0; i < s->n_layers; i++) {
        fill(m->layers[i].attention_norm, 1, width, 0.1, 1);
        fill(m->layers[i].qkv, model_qkv_width(s), width, 2 * of_width, 0);
        fill(m->layers[i].output, width, width, of_width, 0);
        fill(m->layers[i].mlp_norm, 1, width, 0.1, 1);
        fill(m->layers[i].gate_up, 2 * s->inner, width, of_width, 0);
        fill(m->layers[i].down, width, s->inner, of_inner, 0);
    }
    fill(m->norm, 1, width, 0.1, 1);
    fill(m->embedding, s->n_tokens, width, 1, 0);
    return m;
}
