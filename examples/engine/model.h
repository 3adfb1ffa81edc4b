/*
 * A Llama: its sizes and weights, in fp32.
 */
#ifndef MODEL_H
#define MODEL_H

#include "gguf.h"

typedef struct sizes {
    int64_t n_layers, n_heads, n_heads_kv, d_head;
    int64_t inner;    /* width of the layers' second half */
    int64_t n_tokens; /* of the vocabulary */
    int64_t context;  /* the most tokens of a sequence */
    float epsilon;    /* of RMSNorm */
    double rotary_base;
} sizes_t;

/* A matrix is [outputs, inputs]. Q's and K's outputs are in the order of GGUF, whose rotary
 * embedding turns elements 2 i and 2 i + 1 of a head together. */
typedef struct layer {
    float *attention_norm;
    float *qkv; /* the heads of Q, then of K, then of V */
    float *output;
    float *mlp_norm;
    float *gate_up; /* the gate, then what it gates */
    float *down;
} layer_t;

typedef struct model {
    sizes_t sizes;
    layer_t *layers;
    float *norm;
    float *embedding; /* which is the last layer, too */
    float *cos, *sin; /* [context, d_head / 2], of the rotary embedding */
} model_t;

int64_t model_width(const sizes_t *sizes);
int64_t model_qkv_width(const sizes_t *sizes);

model_t *model_read(const gguf_t *file, int64_t n_tokens);
model_t *model_random(const sizes_t *sizes); /* for tests */
void model_free(model_t *model);

#endif
