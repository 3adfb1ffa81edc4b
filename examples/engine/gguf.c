/*
 * See gguf.h. The file is read as a whole; keys, texts and tensors stay where they are in it.
 */
#include "gguf.h"
#include "support.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TYPE_U32 = 4, TYPE_F32 = 6, TYPE_TEXT = 8, TYPE_ARRAY = 9, MOST_AXES = 4, BLOCK = 32 };
static const size_t SCALAR_BYTES[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
enum { N_TYPES = sizeof SCALAR_BYTES / sizeof SCALAR_BYTES[0] };

typedef struct value {
    text_t key;
    uint32_t type;
    size_t at;
} value_t;

typedef struct tensor {
    text_t name;
    int64_t n_rows, n_columns;
    uint32_t type;
    uint64_t offset;
} tensor_t;

struct gguf {
    const char *path;
    unsigned char *data;
    size_t size, at; /* what is read next is at `at` */
    value_t *values;
    tensor_t *tensors;
    size_t n_values, n_tensors, begin; /* of the tensors' data */
};

/* ---- The header ---- */

static const void *take(gguf_t *f, uint64_t size) {
    if (size > f->size - f->at)
        fail("%s: the header ends at byte %zu", f->path, f->size);
    f->at += (size_t)size;
    return f->data + f->at - size;
}

static uint32_t take_u32(gguf_t *f) {
    uint32_t x;
    memcpy(&x, take(f, sizeof x), sizeof x);
    return x;
}

static uint64_t take_u64(gguf_t *f) {
    uint64_t x;
    memcpy(&x, take(f, sizeof x), sizeof x);
    return x;
}

static text_t take_text(gguf_t *f) {
    const uint64_t size = take_u64(f);
    return (text_t){take(f, size), (size_t)size};
}

static void skip_value(gguf_t *f, uint32_t type) {
    if (type == TYPE_TEXT) {
        take_text(f);
    } else if (type == TYPE_ARRAY) {
        const uint32_t of = take_u32(f);
        for (uint64_t n = take_u64(f); n > 0; n--)
            skip_value(f, of);
    } else if (type < N_TYPES) {
        take(f, SCALAR_BYTES[type]);
    } else {
        fail("%s: a value has the unknown type %" PRIu32, f->path, type);
    }
}

static tensor_t take_tensor(gguf_t *f) {
    tensor_t t = {.name = take_text(f), .n_rows = 1};
    const uint32_t n_axes = take_u32(f);
    if (n_axes < 1 || n_axes > MOST_AXES)
        fail("%s: a tensor has %" PRIu32 " axes", f->path, n_axes);
    t.n_columns = (int64_t)take_u64(f);
    for (uint32_t i = 1; i < n_axes; i++)
        t.n_rows *= (int64_t)take_u64(f);
    t.type = take_u32(f);
    t.offset = take_u64(f);
    return t;
}

static void read_file(gguf_t *f) {
    FILE *stream = fopen(f->path, "rb");
    if (stream == NULL || fseek(stream, 0, SEEK_END) != 0)
        fail("%s cannot be opened", f->path);
    const long size = ftell(stream);
    rewind(stream);
    f->size = size > 0 ? (size_t)size : 0;
    f->data = allocate(f->size, 1);
    if (fread(f->data, 1, f->size, stream) != f->size)
        fail("%s cannot be read", f->path);
    fclose(stream);
}

gguf_t *gguf_open(const char *path) {
    gguf_t *f = allocate(1, sizeof *f);
    f->path = path;
    read_file(f);
    if (f->size < 24 || memcmp(take(f, 4), "GGUF", 4) != 0)
        fail("%s is no GGUF file", path);
    const uint32_t version = take_u32(f);
    if (version != 2 && version != 3)
        fail("%s has version %" PRIu32 ": 2 and 3 are read", path, version);
    const uint64_t n_tensors = take_u64(f), n_values = take_u64(f);
    if (n_tensors > f->size || n_values > f->size)
        fail("%s: the header ends at byte %zu", path, f->size);
    f->values = allocate((size_t)n_values, sizeof *f->values);
    f->tensors = allocate((size_t)n_tensors, sizeof *f->tensors);
    for (; f->n_values < n_values; f->n_values++) {
        value_t *value = &f->values[f->n_values];
        value->key = take_text(f);
        value->type = take_u32(f);
        value->at = f->at;
        skip_value(f, value->type);
    }
    for (; f->n_tensors < n_tensors; f->n_tensors++)
        f->tensors[f->n_tensors] = take_tensor(f);
    f->begin = (f->at + 31) / 32 * 32;
    return f;
}

void gguf_close(gguf_t *f) {
    free(f->data);
    free(f->values);
    free(f->tensors);
    free(f);
}

/* ---- Values ---- */

static int is_named(text_t name, const char *text) {
    return name.size == strlen(text) && memcmp(name.bytes, text, name.size) == 0;
}

/* Returns a reader of the value. */
static gguf_t find_value(const gguf_t *f, const char *key, uint32_t type) {
    gguf_t reader = *f;
    for (size_t i = 0; i < f->n_values; i++)
        if (is_named(f->values[i].key, key) && f->values[i].type == type) {
            reader.at = f->values[i].at;
            return reader;
        }
    fail("%s has no value %s of type %" PRIu32, f->path, key, type);
}

int64_t gguf_count(const gguf_t *f, const char *key) {
    gguf_t reader = find_value(f, key, TYPE_U32);
    const uint32_t count = take_u32(&reader);
    if (count == 0 || count > INT32_MAX)
        fail("%s: %s is %" PRIu32, f->path, key, count);
    return count;
}

double gguf_number(const gguf_t *f, const char *key) {
    gguf_t reader = find_value(f, key, TYPE_F32);
    float x;
    memcpy(&x, take(&reader, sizeof x), sizeof x);
    if (!isfinite(x) || x <= 0)
        fail("%s: %s is %g", f->path, key, (double)x);
    return x;
}

text_t gguf_text(const gguf_t *f, const char *key) {
    gguf_t reader = find_value(f, key, TYPE_TEXT);
    return take_text(&reader);
}

text_t *gguf_texts(const gguf_t *f, const char *key, size_t *count) {
    gguf_t reader = find_value(f, key, TYPE_ARRAY);
    if (take_u32(&reader) != TYPE_TEXT)
        fail("%s: %s has no texts", f->path, key);
    *count = (size_t)take_u64(&reader);
    text_t *texts = allocate(*count, sizeof *texts);
    for (size_t i = 0; i < *count; i++)
        texts[i] = take_text(&reader);
    return texts;
}

/* ---- Tensors ---- */

static float load_fp32(const unsigned char *at) {
    float x;
    memcpy(&x, at, sizeof x);
    return x;
}

static float load_fp16(const unsigned char *at) {
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const float magnitude = exponent == 0 ? ldexpf((float)mantissa, -24)
                                          : ldexpf((float)(1024 + mantissa), exponent - 25);
    return bits >> 15 ? -magnitude : magnitude; /* weights are finite */
}

/* An element of Q4_1 is code * scale + minimum; the low halves of the bytes come first. */
static void decode_q4_1(const unsigned char *block, float *to) {
    const float scale = load_fp16(block), minimum = load_fp16(block + 2);
    for (int i = 0; i < BLOCK; i++)
        to[i] = (float)(block[4 + i % 16] >> (i < 16 ? 0 : 4) & 15) * scale + minimum;
}

static void decode_q8_0(const unsigned char *block, float *to) {
    const float scale = load_fp16(block);
    for (int i = 0; i < BLOCK; i++)
        to[i] = (float)(int8_t)block[2 + i] * scale;
}

static void decode_fp32(const unsigned char *block, float *to) {
    *to = load_fp32(block);
}

static void decode_fp16(const unsigned char *block, float *to) {
    *to = load_fp16(block);
}

/* A type has blocks of so many elements and bytes. */
typedef struct type {
    uint32_t number;
    int64_t elements, bytes;
    void (*decode)(const unsigned char *block, float *to);
} type_t;

static const type_t TYPES[] = {
    {0, 1, 4, decode_fp32},
    {1, 1, 2, decode_fp16},
    {3, BLOCK, 20, decode_q4_1},
    {8, BLOCK, 34, decode_q8_0},
};

static const type_t *type_of(const gguf_t *f, const char *name, uint32_t number) {
    for (size_t i = 0; i < sizeof TYPES / sizeof TYPES[0]; i++)
        if (TYPES[i].number == number)
            return &TYPES[i];
    fail("%s: %s has type %" PRIu32 ": F32, F16, Q4_1 and Q8_0 are read", f->path, name, number);
}

static const tensor_t *find_tensor(const gguf_t *f, const char *name) {
    for (size_t i = 0; i < f->n_tensors; i++)
        if (is_named(f->tensors[i].name, name))
            return &f->tensors[i];
    fail("%s has no tensor %s", f->path, name);
}

int64_t gguf_rows(const gguf_t *f, const char *name, int64_t n_columns) {
    const tensor_t *tensor = find_tensor(f, name);
    if (tensor->n_columns != n_columns)
        fail("%s: %s has %" PRId64 " columns, not %" PRId64, f->path, name, tensor->n_columns,
             n_columns);
    return tensor->n_rows;
}

void gguf_read(const gguf_t *f, const char *name, int64_t n_rows, int64_t n_columns, float *to) {
    const tensor_t *tensor = find_tensor(f, name);
    const type_t *type = type_of(f, name, tensor->type);
    const int64_t n_blocks = n_rows * n_columns / type->elements;
    const uint64_t bytes = (uint64_t)(n_blocks * type->bytes);
    if (gguf_rows(f, name, n_columns) != n_rows || n_columns % type->elements != 0)
        fail("%s: %s is %" PRId64 " x %" PRId64 ", not %" PRId64 " x %" PRId64, f->path, name,
             tensor->n_rows, tensor->n_columns, n_rows, n_columns);
    if (f->begin > f->size || tensor->offset > f->size - f->begin ||
        bytes > f->size - f->begin - tensor->offset)
        fail("%s: %s ends beyond byte %zu, where the file does", f->path, name, f->size);
    const unsigned char *from = f->data + f->begin + tensor->offset;
    for (int64_t i = 0; i < n_blocks; i++)
        type->decode(from + i * type->bytes, to + i * type->elements);
}
