/*
 * The model's computation of a step, on a device: it has the cache's memory and the step's arrays.
 */
#ifndef FORWARD_H
#define FORWARD_H

#include "device.h"
#include "model.h"

#include <stdbool.h>

typedef struct forward forward_t;

typedef struct limits {
    int32_t n_pages;      /* of the K/V cache */
    int32_t cache_dtype;  /* FLASH_DTYPE_... of K and V there */
    int32_t most_running; /* sequences of a step */
    int32_t most_tokens;  /* of a step */
} limits_t;

/* A step computes tokens of several sequences, one sequence behind the other. */
typedef struct step {
    int32_t batch, n_tokens, n_logits;
    int32_t longest;   /* most tokens of a sequence */
    int32_t longest_k; /* no sequence has more keys */
    int32_t row_ids;   /* ids of a row of the table */
    int32_t *tokens;   /* [n_tokens] */
    int32_t *starts;   /* [batch + 1]: where the tokens of each sequence begin */
    int32_t *before;   /* [batch]: its tokens in the cache */
    int32_t *wanted;   /* [n_logits]: tokens of the step whose logits are wanted */
    int32_t *table;    /* [batch, row_ids]: its pages */
    /* The step leaves these. */
    int32_t *chosen;          /* [n_logits]: the likeliest next tokens */
    float *logits;            /* [n_logits, the vocabulary's tokens]; NULL: not wanted */
    double attention_seconds; /* of all layers */
    const flash_kernel_t *kernel;
} step_t;

int32_t pages_for(int64_t n_tokens);

/* The model and the device must stay. Logits are given out only where with_logits says so. */
forward_t *forward_make(const model_t *model, device_t *device, const limits_t *limits,
                        bool with_logits);
void forward_free(forward_t *forward); /* what the device has stays there until it is closed */

/* Returns the step that is to be filled in, whose arrays are large enough for the limits. */
step_t *forward_step(forward_t *forward);

/* Computes it; the sizes may be larger then. */
void forward_run(forward_t *forward);

#endif
