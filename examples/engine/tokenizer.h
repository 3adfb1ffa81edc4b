/*
 * Text to tokens and back: the byte-level BPE of the model's file. Pieces of a text are those of
 * GPT-2 with single digits; all letters beyond ASCII count as letters there, and so do signs.
 */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include "gguf.h"

typedef struct tokenizer tokenizer_t;

tokenizer_t *tokenizer_make(const gguf_t *file); /* which must stay open */
void tokenizer_free(tokenizer_t *tokenizer);

/* Writes the tokens of a text behind the others; there must be room for one for each byte. */
void tokenizer_encode(const tokenizer_t *tokenizer, const char *text, int32_t *tokens, int *count);

/* Returns the token that is named so, such as "<|im_end|>". */
int32_t tokenizer_named(const tokenizer_t *tokenizer, const char *name);

/* Writes the bytes of a token to `bytes`, which has room for 256; returns how many. */
size_t tokenizer_decode(const tokenizer_t *tokenizer, int32_t token, char *bytes);

int32_t tokenizer_count(const tokenizer_t *tokenizer);

#endif
