/*
 * Serves many sequences at once (continuous batching): a step computes the next tokens of as many
 * as there is room for, of prompts whole chunks and else one each, in one ragged batch over a cache
 * in pages.
 */
#ifndef ENGINE_H
#define ENGINE_H

#include "forward.h"

typedef struct engine engine_t;

/* A sequence is the prompt's tokens, and then those that the model has chosen. */
typedef struct sequence {
    int32_t *tokens;
    int n_tokens, n_prompt, most_tokens;
    int32_t end;  /* the token with which it ends */
    bool is_done; /* it ended, or has most_tokens */
} sequence_t;

/* This is called with the logits from which the last token of a sequence was chosen. */
typedef void (*engine_observer_t)(void *context, int sequence, const float *logits);

typedef struct engine_counts {
    int64_t steps, tokens; /* tokens that were computed */
    int64_t shared_tokens; /* whose pages were there */
    int64_t preemptions;   /* a sequence gave its pages back, to begin anew */
    int32_t most_pages;    /* in use at the same time */
    double seconds, attention_seconds;
    const char *kernel; /* the name of the last step's */
} engine_counts_t;

/* The model and the device must stay. observer may be NULL. */
engine_t *engine_make(const model_t *model, device_t *device, const limits_t *limits,
                      engine_observer_t observer, void *context);
void engine_free(engine_t *engine);

/* Adds a sequence of a prompt and at most n_new tokens; returns its number, which are 0, 1, 2, ...,
 * or -1 if it is empty, longer than the model's context, or needs more pages than there are. */
int engine_submit(engine_t *engine, const int32_t *prompt, int n_prompt, int n_new, int32_t end);

/* Computes a step. Returns false if nothing was left to do. */
bool engine_step(engine_t *engine);

const sequence_t *engine_sequence(const engine_t *engine, int number);
const engine_counts_t *engine_counts(const engine_t *engine);

#endif
