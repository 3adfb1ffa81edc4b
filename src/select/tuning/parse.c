/*
 * Measured results are a header, one result per line as format.c writes it, and comments.
 */
#include "select/tuning/parse.h"

#include "config/config.h"
#include "config/kernel_table.h"
#include "config/words.h"
#include "config_facts.h"
#include "core/status.h"
#include "core/text_reader.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- A line ---- */

/* Takes "name=", with blanks before it. */
static flash_status_t read_name(text_reader_t *r, const char *name) {
    text_skip_blanks(r);
    return text_take(r, name) ? FLASH_SUCCESS : text_expected(r, name);
}

static flash_status_t read_number(text_reader_t *r, const char *name, int64_t most,
                                  int64_t *value) {
    FLASH_TRY(read_name(r, name));
    text_reader_t behind = *r;
    if (!isdigit((unsigned char)*r->at))
        return text_expected(r, "a number");
    if (!text_take_number(&behind, value) || *value < 1 || *value > most)
        return text_expected(r, "a number from 1 on that is not too large");
    *r = behind;
    return FLASH_SUCCESS;
}

static flash_status_t read_int32(text_reader_t *r, const char *name, int32_t *value) {
    int64_t number = 0;
    FLASH_TRY(read_number(r, name, INT32_MAX, &number));
    *value = (int32_t)number;
    return FLASH_SUCCESS;
}

static flash_status_t read_size(text_reader_t *r, const char *name, int32_t *size_class) {
    int64_t size = 0;
    FLASH_TRY(read_number(r, name, (int64_t)1 << 62, &size));
    *size_class = tuning_size_class(size);
    return FLASH_SUCCESS;
}

/* Reads "op=...", which results of the forward pass may lack. */
static flash_status_t read_op(text_reader_t *r, int32_t *op) {
    *op = FLASH_OP_FORWARD;
    text_skip_blanks(r);
    if (!text_take(r, "op=") || words_take_op(r, op))
        return FLASH_SUCCESS;
    return text_expected(r, "an operation (" FLASH_CONFIG_OP_WORDS ")");
}

static flash_status_t read_dtype(text_reader_t *r, int32_t *dtype) {
    FLASH_TRY(read_name(r, "dtype="));
    return words_read_dtype(r, dtype);
}

static flash_status_t read_features(text_reader_t *r, int32_t *features) {
    FLASH_TRY(read_name(r, "features="));
    *features = 0;
    if (text_take_word(r, "none"))
        return FLASH_SUCCESS;
    do {
        if (!words_take_feature(r, features))
            return text_expected(r, "none or features (" FLASH_CONFIG_FEATURE_WORDS "), each once");
    } while (text_take(r, "+"));
    return FLASH_SUCCESS;
}

static flash_status_t read_key(text_reader_t *r, tuning_key_t *key) {
    int32_t *f = key->fields;
    FLASH_TRY(read_int32(r, "cc=", &f[TUNING_COMPUTE_CAPABILITY]));
    FLASH_TRY(read_int32(r, "sms=", &f[TUNING_MULTIPROCESSORS]));
    FLASH_TRY(read_op(r, &f[TUNING_OP]));
    FLASH_TRY(read_dtype(r, &f[TUNING_DTYPE]));
    FLASH_TRY(read_int32(r, "d_head=", &f[TUNING_D_HEAD]));
    FLASH_TRY(read_features(r, &f[TUNING_FEATURES]));
    FLASH_TRY(read_size(r, "q=", &f[TUNING_LOG2_Q]));
    FLASH_TRY(read_size(r, "k=", &f[TUNING_LOG2_K]));
    return read_size(r, "heads=", &f[TUNING_LOG2_HEADS]);
}

static flash_status_t read_config(const text_reader_t *r, flash_config_t *config) {
    *config = (flash_config_t)FLASH_CONFIG_INIT;
    if (flash_config_parse(r->at, config) == FLASH_SUCCESS)
        return FLASH_SUCCESS;
    char why[480];
    status_copy_text(status_message(), why, sizeof why);
    return status_fail(FLASH_ERROR_INVALID_ARGUMENT, "line %" PRId32 ": %s", r->line_number, why);
}

/* Refuses a kernel that computes something else than the key says. */
static flash_status_t check_op(const text_reader_t *r, const tuning_key_t *key,
                               const flash_config_t *config) {
    const int32_t op = key->fields[TUNING_OP];
    FLASH_REQUIRE(config->op == op, FLASH_ERROR_INVALID_ARGUMENT,
                  "line %" PRId32 ": op is %s, and the kernel's %s", r->line_number, words_op(op),
                  words_op(config->op));
    return FLASH_SUCCESS;
}

/* Reads a result. row->kernel is NULL for a configuration that is not in the table. */
static flash_status_t read_row(text_reader_t *r, tuning_row_t *row) {
    flash_config_t config;
    FLASH_TRY(read_key(r, &row->key));
    FLASH_TRY(read_number(r, "ns=", INT64_MAX, &row->nanoseconds));
    FLASH_TRY(read_name(r, ":"));
    FLASH_TRY(read_config(r, &config));
    FLASH_TRY(check_op(r, &row->key, &config));
    row->kernel = kernel_table_find(&config);
    return FLASH_SUCCESS;
}

/* ---- All lines ---- */

/* The lines of a text, without comments and without blanks around them. */
typedef struct lines {
    const char *rest;
    int32_t number;
    char line[FLASH_TUNING_TEXT_SIZE];
} lines_t;

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

/* Finds the next line that is not empty; lines->line is "" at the end of the text. */
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
        text_reader_t r = {lines.line, lines.line, lines.number};
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

/* Allocates room for as many rows as the text has lines. */
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
