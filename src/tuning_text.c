/*
 * The text form of measured results: a header, then a result a line, the key's fields in their
 * order, the time, and the short form of the kernel's configuration.
 *
 *   cc=90 sms=132 dtype=BF16 d_head=128 features=causal q=2048 k=2048 heads=128 ns=155020: (BF16,
 * ...
 *
 * Sizes are written as the power of two that they were rounded to, and rounded when read. All
 * numbers are integers: the C library reads and writes others by the process's locale.
 */
#define _POSIX_C_SOURCE 200809L /* getline */
#include "tuning.h"

#include "config.h"
#include "config_facts.h"
#include "kernel_table.h"
#include "status.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Writing ---- */

typedef struct writer {
    char text[FLASH_TUNING_TEXT_SIZE];
    size_t length;
} writer_t;

__attribute__((format(printf, 2, 3))) static void put(writer_t *w, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int n = vsnprintf(w->text + w->length, sizeof w->text - w->length, format, arguments);
    va_end(arguments);
    w->length += (size_t)n;
}

static void put_features(writer_t *w, int32_t features) {
    const char *separator = " features=";
#define PUT_FEATURE(name, word)                                                                    \
    if (features & FLASH_FEATURE_##name) {                                                         \
        put(w, "%s%s", separator, word);                                                           \
        separator = "+";                                                                           \
    }
    FLASH_CONFIG_FEATURES(PUT_FEATURE)
#undef PUT_FEATURE
    if (features == 0)
        put(w, "%snone", separator);
}

static void put_key(writer_t *w, const tuning_key_t *key) {
    const int32_t *f = key->fields;
    put(w, "cc=%" PRId32 " sms=%" PRId32 " dtype=%s d_head=%" PRId32, f[TUNING_COMPUTE_CAPABILITY],
        f[TUNING_MULTIPROCESSORS], config_dtype_name(f[TUNING_DTYPE]), f[TUNING_D_HEAD]);
    put_features(w, f[TUNING_FEATURES]);
    put(w, " q=%" PRId64 " k=%" PRId64 " heads=%" PRId64, (int64_t)1 << f[TUNING_LOG2_Q],
        (int64_t)1 << f[TUNING_LOG2_K], (int64_t)1 << f[TUNING_LOG2_HEADS]);
}

flash_status_t tuning_write(const tuning_row_t *row, char *text, size_t size) {
    writer_t w = {.length = 0};
    char config[FLASH_CONFIG_TEXT_SIZE];
    FLASH_REQUIRE(text != NULL, FLASH_ERROR_INVALID_ARGUMENT, "text is NULL");
    FLASH_TRY(flash_config_format(&row->kernel->config, config, sizeof config));
    put_key(&w, &row->key);
    put(&w, " ns=%" PRId64 ": %s", row->nanoseconds, config);
    FLASH_REQUIRE(w.length < size, FLASH_ERROR_BUFFER_TOO_SMALL,
                  "the line takes %zu bytes, the buffer has %zu", w.length + 1, size);
    memcpy(text, w.text, w.length + 1);
    return FLASH_SUCCESS;
}

/* ---- Reading a line ---- */

typedef struct reader {
    int32_t line_number;
    const char *line;
    const char *at;
} reader_t;

static flash_status_t expected(const reader_t *r, const char *what) {
    return status_fail(FLASH_ERROR_INVALID_ARGUMENT,
                       "line %" PRId32 ": expected %s at position %td of \"%.200s\"",
                       r->line_number, what, r->at - r->line, r->line);
}

static bool take_text(reader_t *r, const char *text) {
    const size_t length = strlen(text);
    if (strncmp(r->at, text, length) != 0)
        return false;
    r->at += length;
    return true;
}

/* A word of letters and digits, all of it. */
static bool take_word(reader_t *r, const char *word) {
    reader_t ahead = *r;
    if (!take_text(&ahead, word) || isalnum((unsigned char)*ahead.at) || *ahead.at == '_')
        return false;
    *r = ahead;
    return true;
}

/* "name=", after blanks. */
static flash_status_t read_name(reader_t *r, const char *name) {
    while (*r->at == ' ' || *r->at == '\t')
        r->at++;
    return take_text(r, name) ? FLASH_SUCCESS : expected(r, name);
}

static flash_status_t read_number(reader_t *r, const char *name, int64_t most, int64_t *value) {
    char *end;
    FLASH_TRY(read_name(r, name));
    if (!isdigit((unsigned char)*r->at))
        return expected(r, "a number");
    errno = 0;
    const long long n = strtoll(r->at, &end, 10);
    if (errno != 0 || n < 1 || n > most)
        return expected(r, "a number from 1 on that is not too large");
    r->at = end;
    *value = n;
    return FLASH_SUCCESS;
}

static flash_status_t read_int32(reader_t *r, const char *name, int32_t *value) {
    int64_t number = 0;
    FLASH_TRY(read_number(r, name, INT32_MAX, &number));
    *value = (int32_t)number;
    return FLASH_SUCCESS;
}

static flash_status_t read_size(reader_t *r, const char *name, int32_t *size_class) {
    int64_t size = 0;
    FLASH_TRY(read_number(r, name, (int64_t)1 << 62, &size));
    *size_class = tuning_size_class(size);
    return FLASH_SUCCESS;
}

static flash_status_t read_dtype(reader_t *r, int32_t *dtype) {
    FLASH_TRY(read_name(r, "dtype="));
#define READ_DTYPE(name)                                                                           \
    if (take_word(r, #name)) {                                                                     \
        *dtype = FLASH_DTYPE_##name;                                                               \
        return FLASH_SUCCESS;                                                                      \
    }
    FLASH_CONFIG_DTYPES(READ_DTYPE)
#undef READ_DTYPE
    return expected(r, "an element type (FP16, BF16, FP32)");
}

/* One more feature of the set. */
static bool take_feature(reader_t *r, int32_t *features) {
#define READ_FEATURE(name, word)                                                                   \
    if (!(*features & FLASH_FEATURE_##name) && take_word(r, word)) {                               \
        *features |= FLASH_FEATURE_##name;                                                         \
        return true;                                                                               \
    }
    FLASH_CONFIG_FEATURES(READ_FEATURE)
#undef READ_FEATURE
    return false;
}

static flash_status_t read_features(reader_t *r, int32_t *features) {
    FLASH_TRY(read_name(r, "features="));
    *features = 0;
    if (take_word(r, "none"))
        return FLASH_SUCCESS;
    do {
        if (!take_feature(r, features))
            return expected(r, "none or features (causal, window, softcap, varlen), each once");
    } while (take_text(r, "+"));
    return FLASH_SUCCESS;
}

static flash_status_t read_key(reader_t *r, tuning_key_t *key) {
    int32_t *f = key->fields;
    FLASH_TRY(read_int32(r, "cc=", &f[TUNING_COMPUTE_CAPABILITY]));
    FLASH_TRY(read_int32(r, "sms=", &f[TUNING_MULTIPROCESSORS]));
    FLASH_TRY(read_dtype(r, &f[TUNING_DTYPE]));
    FLASH_TRY(read_int32(r, "d_head=", &f[TUNING_D_HEAD]));
    FLASH_TRY(read_features(r, &f[TUNING_FEATURES]));
    FLASH_TRY(read_size(r, "q=", &f[TUNING_LOG2_Q]));
    FLASH_TRY(read_size(r, "k=", &f[TUNING_LOG2_K]));
    return read_size(r, "heads=", &f[TUNING_LOG2_HEADS]);
}

static flash_status_t read_config(const reader_t *r, flash_config_t *config) {
    *config = (flash_config_t)FLASH_CONFIG_INIT;
    if (flash_config_parse(r->at, config) == FLASH_SUCCESS)
        return FLASH_SUCCESS;
    char why[384];
    status_copy_text(status_message(), why, sizeof why);
    return status_fail(FLASH_ERROR_INVALID_ARGUMENT, "line %" PRId32 ": %s", r->line_number, why);
}

/* row->kernel stays NULL for a configuration that is not in the table. */
static flash_status_t read_row(reader_t *r, tuning_row_t *row) {
    flash_config_t config;
    FLASH_TRY(read_key(r, &row->key));
    FLASH_TRY(read_number(r, "ns=", INT64_MAX, &row->nanoseconds));
    FLASH_TRY(read_name(r, ":"));
    FLASH_TRY(read_config(r, &config));
    row->kernel = kernel_table_find(&config);
    return FLASH_SUCCESS;
}

/* ---- Reading results ---- */

/* The lines of a text, one by one, without comments and surrounding blanks. */
typedef struct lines {
    const char *rest;
    int32_t number;
    char line[FLASH_TUNING_TEXT_SIZE];
} lines_t;

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

/* The next line that holds something; "" at the end. */
static flash_status_t next_line(lines_t *lines) {
    lines->line[0] = '\0';
    while (lines->line[0] == '\0' && *lines->rest != '\0') {
        const char *begin = lines->rest;
        const size_t whole = strcspn(begin, "\n");
        size_t length = strcspn(begin, "#\n");
        lines->rest = begin + whole + (begin[whole] == '\n');
        lines->number++;
        while (length > 0 && is_blank(begin[length - 1]))
            length--;
        while (length > 0 && is_blank(*begin)) {
            begin++;
            length--;
        }
        FLASH_REQUIRE(length < sizeof lines->line, FLASH_ERROR_INVALID_ARGUMENT,
                      "line %" PRId32 ": %zu characters, at most %zu", lines->number, length,
                      sizeof lines->line - 1);
        memcpy(lines->line, begin, length);
        lines->line[length] = '\0';
    }
    return FLASH_SUCCESS;
}

static void trace_absent(const lines_t *lines) {
    fprintf(stderr, "flashattn: result of line %" PRId32 " passed over, not in this library: %s\n",
            lines->number, lines->line);
}

static flash_status_t read_rows(const char *text, bool trace, tuning_results_t *results) {
    lines_t lines = {.rest = text};
    FLASH_TRY(next_line(&lines));
    FLASH_REQUIRE(strcmp(lines.line, FLASH_TUNING_HEADER) == 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "line %" PRId32 " is \"%.100s\": measured results begin with \"%s\"",
                  lines.number, lines.line, FLASH_TUNING_HEADER);
    for (;;) {
        FLASH_TRY(next_line(&lines));
        if (lines.line[0] == '\0')
            return FLASH_SUCCESS;
        reader_t r = {lines.number, lines.line, lines.line};
        tuning_row_t *row = &results->rows[results->count];
        FLASH_TRY(read_row(&r, row));
        if (row->kernel != NULL)
            results->count++;
        else if (trace)
            trace_absent(&lines);
    }
}

static int compare_rows(const void *a, const void *b) {
    return tuning_compare(a, b);
}

/* Room for as many rows as the text has lines. */
static tuning_results_t *allocate(const char *text) {
    size_t n_lines = 1;
    for (; *text != '\0'; text++)
        n_lines += *text == '\n';
    return calloc(1, sizeof(tuning_results_t) + n_lines * sizeof(tuning_row_t));
}

flash_status_t tuning_parse(const char *text, bool trace, tuning_results_t **results) {
    tuning_results_t *found = allocate(text);
    FLASH_REQUIRE(found != NULL, FLASH_ERROR_OUT_OF_MEMORY, "no memory for measured results");
    const flash_status_t status = read_rows(text, trace, found);
    if (status != FLASH_SUCCESS) {
        free(found);
        return status;
    }
    qsort(found->rows, (size_t)found->count, sizeof found->rows[0], compare_rows);
    *results = found;
    return FLASH_SUCCESS;
}

/* ---- FLASH_TUNING ---- */

/* The file's text, to be freed; NULL with errno where it cannot be read, or holds a NUL. */
static char *read_file(const char *path) {
    char *text = NULL;
    size_t size = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return NULL;
    errno = 0;
    ssize_t length = getdelim(&text, &size, '\0', file); /* to the end: text has no NUL */
    if (length < 0 && feof(file) && text != NULL) {
        text[0] = '\0';
        length = 0;
    }
    const bool is_whole = length >= 0 && feof(file) && !ferror(file);
    fclose(file);
    if (is_whole)
        return text;
    if (errno == 0)
        errno = EILSEQ;
    free(text);
    return NULL;
}

flash_status_t tuning_read(const char *value, bool trace, tuning_results_t **results) {
    const bool is_file = strcmp(value, "none") != 0;
    char *text = is_file ? read_file(value) : strdup(FLASH_TUNING_HEADER);
    FLASH_REQUIRE(text != NULL, FLASH_ERROR_INVALID_ARGUMENT, "%.200s: %s", value, strerror(errno));
    const flash_status_t status = tuning_parse(text, trace, results);
    free(text);
    if (status == FLASH_SUCCESS)
        (*results)->alone = !is_file;
    return status;
}
