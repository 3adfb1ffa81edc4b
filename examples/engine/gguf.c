/*
 * See gguf.h. The file is read as a whole; keys, texts and tensors stay where they are in it.
 */
#include "gguf.h"
#include "support.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TYPE_U32 = 4, TYPE_F32 = 6, TYPE_TEXT = 8, TYPE_ARRAY = 9, MOST_AXES = 4, BLOCK = 32 };
enum { ALIGNMENT = 32 }; /* of the tensors' data, where the file names no other */
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
    bool is_read;
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
        if (of == TYPE_ARRAY)
            fail("%s: a value is an array of arrays, which is not read", f->path);
        for (uint64_t n = take_u64(f); n > 0; n--)
            skip_value(f, of);
    } else if (type < N_TYPES) {
        take(f, SCALAR_BYTES[type]);
    } else {
        fail("%s: a value has the unknown type %" PRIu32, f->path, type);
    }
}

/* Returns the length of an axis, behind axes of `before` elements. An element has more than a bit
 * in the file, whatever its type, and so the number of a tensor's elements cannot overflow. */
static int64_t take_length(gguf_t *f, int64_t before) {
    const uint64_t length = take_u64(f);
    if (length == 0 || length > 8 * (uint64_t)f->size / (uint64_t)before)
        fail("%s: a tensor has an axis of %" PRIu64 ", in a file of %zu bytes", f->path, length,
             f->size);
    return (int64_t)length;
}

static tensor_t take_tensor(gguf_t *f) {
    tensor_t t = {.name = take_text(f), .n_rows = 1};
    const uint32_t n_axes = take_u32(f);
    if (n_axes < 1 || n_axes > MOST_AXES)
        fail("%s: a tensor has %" PRIu32 " axes", f->path, n_axes);
    t.n_columns = take_length(f, 1);
    for (uint32_t i = 1; i < n_axes; i++)
        t.n_rows *= take_length(f, t.n_rows * t.n_columns);
    t.type = take_u32(f);
    t.offset = take_u64(f);
    return t;
}

static void read_file(gguf_t *f) {
    FILE *stream = fopen(f->path, "rb");
    if (stream == NULL || fseek(stream, 0, SEEK_END) != 0)
        fail("%s cannot be opened", f->path);
    const long size = ftell(stream);
    if (size < 0 || size == LONG_MAX) /* a folder has the latter */
        fail("%s cannot be read", f->path);
    rewind(stream);
    f->size = (size_t)size;
    f->data = allocate(f->size, 1);
    if (fread(f->data, 1, f->size, stream) != f->size)
        fail("%s cannot be read", f->path);
    fclose(stream);
}

int text_is(text_t text, const char *other) {
    return text.size == strlen(other) && memcmp(text.bytes, other, text.size) == 0;
}

static const value_t *value_of(const gguf_t *f, const char *key) {
    for (size_t i = 0; i < f->n_values; i++)
        if (text_is(f->values[i].key, key))
            return &f->values[i];
    return NULL;
}

static size_t alignment_of(const gguf_t *f) {
    static const char KEY[] = "general.alignment";
    return value_of(f, KEY) != NULL ? (size_t)gguf_count(f, KEY) : ALIGNMENT;
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
    const size_t alignment = alignment_of(f);
    f->begin = (f->at + alignment - 1) / alignment * alignment;
    return f;
}

void gguf_close(gguf_t *f) {
    free(f->data);
    free(f->values);
    free(f->tensors);
    free(f);
}

/* ---- Values ---- */

int gguf_has(const gguf_t *f, const char *key) {
    return value_of(f, key) != NULL;
}

/* Returns a reader of the value. */
static gguf_t find_value(const gguf_t *f, const char *key, uint32_t type) {
    gguf_t reader = *f;
    const value_t *value = value_of(f, key);
    if (value == NULL || value->type != type)
        fail("%s has no value %s of type %" PRIu32, f->path, key, type);
    reader.at = value->at;
    return reader;
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
    const float magnitude = exponent == 31  ? (mantissa == 0 ? INFINITY : NAN)
                            : exponent == 0 ? ldexpf((float)mantissa, -24)
                                            : ldexpf((float)(1024 + mantissa), exponent - 25);
    return bits >> 15 ? -magnitude : magnitude;
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

static tensor_t *find_tensor(const gguf_t *f, const char *name) {
    for (size_t i = 0; i < f->n_tensors; i++)
        if (text_is(f->tensors[i].name, name))
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
    tensor_t *tensor = find_tensor(f, name);
    const type_t *type = type_of(f, name, tensor->type);
    if (gguf_rows(f, name, n_columns) != n_rows || n_columns % type->elements != 0)
        fail("%s: %s is %" PRId64 " x %" PRId64 ", not %" PRId64 " x %" PRId64, f->path, name,
             tensor->n_rows, tensor->n_columns, n_rows, n_columns);
    const int64_t n_blocks = n_rows * n_columns / type->elements;
    const uint64_t bytes = (uint64_t)(n_blocks * type->bytes);
    if (f->begin > f->size || tensor->offset > f->size - f->begin ||
        bytes > f->size - f->begin - tensor->offset)
        fail("%s: %s ends beyond byte %zu, where the file does", f->path, name, f->size);
    const unsigned char *from = f->data + f->begin + tensor->offset;
    for (int64_t i = 0; i < n_blocks; i++)
        type->decode(from + i * type->bytes, to + i * type->elements);
    for (int64_t i = 0; i < n_rows * n_columns; i++)
        if (!isfinite(to[i]))
            fail("%s: element %" PRId64 " of %s is %g", f->path, i, name, (double)to[i]);
    tensor->is_read = true;
}

void gguf_check_all_read(const gguf_t *f) {
    for (size_t i = 0; i < f->n_tensors; i++)
        if (!f->tensors[i].is_read)
            fail("%s has a tensor %.*s, which is of no use here", f->path,
                 SHOWN(f->tensors[i].name));
}
