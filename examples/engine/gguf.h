/*
 * Reads GGUF, the file format of llama.cpp: values by key, and tensors of the types F32, F16, Q4_1
 * and Q8_0, which become fp32. (https://github.com/ggml-org/ggml, docs/gguf.md) Whatever is wrong
 * with a file ends the program with a message.
 */
#ifndef GGUF_H
#define GGUF_H

#include <stddef.h>
#include <stdint.h>

typedef struct gguf gguf_t;

/* Bytes in the file, without a NUL behind them. */
typedef struct text {
    const char *bytes;
    size_t size;
} text_t;

int text_is(text_t text, const char *other);

/* The two arguments of "%.*s", which show the beginning of a text. */
#define SHOWN(text) (int)((text).size < 64 ? (text).size : 64), (text).bytes

gguf_t *gguf_open(const char *path);
void gguf_close(gguf_t *file);

int gguf_has(const gguf_t *file, const char *key);

/* These return the value of a key, which must be of their kind. */
int64_t gguf_count(const gguf_t *file, const char *key);
double gguf_number(const gguf_t *file, const char *key);
text_t gguf_text(const gguf_t *file, const char *key);
text_t *gguf_texts(const gguf_t *file, const char *key, size_t *count); /* to be freed */

/* Returns the length of the outermost axis of a tensor whose rows have n_columns. */
int64_t gguf_rows(const gguf_t *file, const char *name, int64_t n_columns);

/* Writes a tensor of n_rows rows of n_columns in fp32, all of them finite. */
void gguf_read(const gguf_t *file, const char *name, int64_t n_rows, int64_t n_columns, float *to);

/* Says that all was read that belongs to a model: another tensor is part of another computation. */
void gguf_check_all_read(const gguf_t *file);

#endif
