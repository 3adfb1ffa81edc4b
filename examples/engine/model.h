/*
 * A Llama: its sizes and weights. Tokens are rows.
 */
#ifndef MODEL_H
#define MODEL_H

#include "device.h"
#include "gguf.h"
#include "support.h"

typedef struct sizes {
    int64_t n_layers, n_heads, n_heads_kv, d_head;
    int64_t inner;    /* width of the layers' second half */
    int64_t n_tokens; /* of the vocabulary */
    int64_t context;  /* the most tokens of a sequence */
    float epsilon;    /* of RMSNorm */
    double rotary_base;
} sizes_t;

/* Rows of a matrix are outputs. Q's and K's are in the order of GGUF, whose rotary embedding turns
 * elements 2 i and 2 i + 1 of a head together. A norm is a row. */
typedef struct layer {
    matrix_t attention_norm;
    matrix_t qkv; /* the heads of Q, then of K, then of V */
    matrix_t output;
    matrix_t mlp_norm;
    matrix_t gate_up; /* the gate, then what it gates */
    matrix_t down;
} layer_t;

typedef struct model {
    sizes_t sizes;
    layer_t *layers;
    matrix_t norm;
    matrix_t embedding; /* which is the last layer, too */
    matrix_t cos, sin;  /* [context, d_head / 2], of the rotary embedding */
    list_t memory;
} model_t;

int64_t model_width(const sizes_t *sizes);
int64_t model_qkv_width(const sizes_t *sizes);

/* These are in memory of the host, all of fp32. */
model_t *model_read(const gguf_t *file, int64_t n_tokens);
model_t *model_random(const sizes_t *sizes); /* for tests */
void model_free(model_t *model);

/* Returns the model on a device: matrices in its type, norms and angles in fp32. Only the layers
 * are to be freed; the device keeps the weights, or they stay where they are. */
model_t model_place(const model_t *model, device_t *device);

#endif
