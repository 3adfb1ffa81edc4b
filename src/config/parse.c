/*
 * This file reads the short form that format.c writes, also with blanks and with words in any
 * order.
 */
#include "config/config.h"
#include "config/facts.h"
#include "config/family.h"
#include "config/kernel_table.h"
#include "config/words.h"
#include "core/status.h"
#include "core/text_reader.h"

/* The state of reading a configuration. */
typedef struct reading {
    text_reader_t at;
    flash_config_t config;
    const config_layout_t *layout; /* of its rows, after the family and the operation are read */
    bool has_counts;               /* the word that is always there has been read */
} reading_t;

static bool take_char(text_reader_t *r, char c) {
    text_skip_blanks(r);
    if (*r->at != c)
        return false;
    r->at++;
    return true;
}

/* Reads an int32, with no blanks before it. */
static bool take_digits(text_reader_t *r, int32_t *value) {
    text_reader_t behind = *r;
    int64_t n;
    if (!text_take_number(&behind, &n) || n < INT32_MIN || n > INT32_MAX)
        return false;
    *value = (int32_t)n;
    *r = behind;
    return true;
}

/* ---- The family, the operation and the shape ---- */

static flash_status_t read_arch(text_reader_t *r, int32_t *arch) {
    text_skip_blanks(r);
#define READ_ARCH(NAME, name)                                                                      \
    if (text_take_word(r, #NAME)) {                                                                \
        *arch = FLASH_ARCH_##NAME;                                                                 \
        return FLASH_SUCCESS;                                                                      \
    }
    FLASH_CONFIG_ARCHS(READ_ARCH)
#undef READ_ARCH
    if (*r->at != '(')
        return text_expected(r, "the name of a kernel family or '('");
    *arch = FLASH_CONFIG_UNNAMED_ARCH;
    return FLASH_SUCCESS;
}

/* Reads the operation, which the text of the forward pass lacks, and finds the rows' facts. */
static flash_status_t read_op(reading_t *r, const family_facts_t *facts, const row_facts_t **rows) {
    text_skip_blanks(&r->at);
    const text_reader_t word = r->at;
    words_take_op(&r->at, &r->config.op);
    *rows = facts->rows[r->config.op];
    return *rows != NULL ? FLASH_SUCCESS : text_expected(&word, "an operation of the family");
}

static flash_status_t read_family(reading_t *r) {
    const family_t *family;
    const row_facts_t *rows;
    FLASH_TRY(read_arch(&r->at, &r->config.arch));
    FLASH_TRY(family_require(r->config.arch, FLASH_ERROR_INVALID_ARGUMENT, &family));
    FLASH_TRY(read_op(r, family->facts, &rows));
    r->layout = rows->layout;
    r->has_counts = true;
    for (int32_t i = 0; i < r->layout->n_words; i++)
        if (r->layout->words[i].n_counts > 0)
            r->has_counts = false;
    return FLASH_SUCCESS;
}

static flash_status_t read_separator(text_reader_t *r) {
    return take_char(r, ',') ? FLASH_SUCCESS : text_expected(r, "','");
}

static flash_status_t read_field(reading_t *r, int32_t field) {
    int32_t value;
    text_skip_blanks(&r->at);
    if (!take_digits(&r->at, &value))
        return text_expected(&r->at, config_field_name(field));
    config_set_field(&r->config, field, value);
    return FLASH_SUCCESS;
}

static flash_status_t read_d_head(reading_t *r) {
    text_skip_blanks(&r->at);
    if (r->layout->any_d_head && text_take_word(&r->at, "any"))
        return FLASH_SUCCESS;
    return read_field(r, CONFIG_FIELD_d_head);
}

/* Reads the "/128" behind d_head, if it is there. */
static flash_status_t read_d_head_v(reading_t *r) {
    if (!r->layout->has_d_head_v || !take_char(&r->at, '/'))
        return FLASH_SUCCESS;
    return read_field(r, CONFIG_FIELD_d_head_v);
}

/* Reads the "/E4M3" behind dtype, if it is there. */
static flash_status_t read_operand_dtype(reading_t *r) {
    if (!r->layout->has_operand_dtype || !take_char(&r->at, '/'))
        return FLASH_SUCCESS;
    text_skip_blanks(&r->at);
    return words_read_dtype(&r->at, &r->config.operand_dtype);
}

/* Reads "(dtype, d_head, B_r, ...)". */
static flash_status_t read_shape(reading_t *r) {
    if (!take_char(&r->at, '('))
        return text_expected(&r->at, "'('");
    text_skip_blanks(&r->at);
    FLASH_TRY(words_read_dtype(&r->at, &r->config.dtype));
    FLASH_TRY(read_operand_dtype(r));
    FLASH_TRY(read_separator(&r->at));
    FLASH_TRY(read_d_head(r));
    FLASH_TRY(read_d_head_v(r));
    for (int32_t i = 0; i < r->layout->n_shape; i++) {
        FLASH_TRY(read_separator(&r->at));
        FLASH_TRY(read_field(r, r->layout->shape[i]));
    }
    return take_char(&r->at, ')') ? FLASH_SUCCESS : text_expected(&r->at, "')'");
}

/* ---- The words ---- */

static bool take_switch(reading_t *r, const config_word_t *word) {
    const int32_t field = word->fields[0];
    if (config_field(&r->config, field) || !text_take_word(&r->at, word->word))
        return false;
    config_set_field(&r->config, field, 1);
    return true;
}

/* Reads the word, its numbers, and its suffix if it is there. */
static bool take_counts(reading_t *r, const config_word_t *word) {
    int32_t values[CONFIG_WORD_FIELDS];
    text_reader_t after_word = r->at;
    if (r->has_counts || !text_take(&after_word, word->word))
        return false;
    for (int32_t i = 0; i < word->n_counts; i++)
        if (!text_take(&after_word, "_") || !take_digits(&after_word, &values[i]))
            return false;
    text_take(&after_word, word->suffix);
    if (text_is_word_char(*after_word.at))
        return false;
    for (int32_t i = 0; i < word->n_counts; i++)
        config_set_field(&r->config, word->fields[i], values[i]);
    r->at = after_word;
    r->has_counts = true;
    return true;
}

/* Reads one of the words after ':'. Each may come once. */
static flash_status_t read_word(reading_t *r) {
    text_skip_blanks(&r->at);
    if (words_take_feature(&r->at, &r->config.features))
        return FLASH_SUCCESS;
    for (int32_t i = 0; i < r->layout->n_words; i++) {
        const config_word_t *word = &r->layout->words[i];
        if (word->n_counts > 0 ? take_counts(r, word) : take_switch(r, word))
            return FLASH_SUCCESS;
    }
    return text_expected(&r->at, r->layout->words_text);
}

/* Returns the form of the word that is always there, for a text that ends without it. */
static const char *counts_form(const config_layout_t *layout) {
    int32_t i = 0;
    while (layout->words[i].n_counts == 0)
        i++;
    return layout->words[i].form;
}

static flash_status_t read_words(reading_t *r) {
    if (take_char(&r->at, ':')) {
        do {
            FLASH_TRY(read_word(r));
        } while (take_char(&r->at, '+'));
    }
    return r->has_counts ? FLASH_SUCCESS : text_expected(&r->at, counts_form(r->layout));
}

static flash_status_t read_all(reading_t *r) {
    FLASH_TRY(read_family(r));
    FLASH_TRY(read_shape(r));
    FLASH_TRY(read_words(r));
    text_skip_blanks(&r->at);
    return *r->at.at == '\0' ? FLASH_SUCCESS : text_expected(&r->at, "the end");
}

/* ---- The example in a refusal ---- */

/* Returns a row of the family that was read, or the first row where there is none. */
static const flash_config_t *find_example(const reading_t *r) {
    for (int32_t i = 0; r->layout != NULL && i < kernel_table_count; i++)
        if (kernel_table[i].config.arch == r->config.arch)
            return &kernel_table[i].config;
    return &kernel_table[0].config;
}

static flash_status_t add_example(const reading_t *r) {
    char why[320], example[FLASH_CONFIG_TEXT_SIZE];
    status_copy_text(status_message(), why, sizeof why);
    FLASH_TRY(flash_config_format(find_example(r), example, sizeof example));
    return status_fail(FLASH_ERROR_INVALID_ARGUMENT, "%s; a configuration looks like \"%s\"", why,
                       example);
}

flash_status_t flash_config_parse(const char *text, flash_config_t *config) {
    FLASH_REQUIRE(text != NULL, FLASH_ERROR_INVALID_ARGUMENT, "text is NULL");
    reading_t r = {.at = {.text = text, .at = text}, .config = FLASH_CONFIG_INIT};
    if (read_all(&r) != FLASH_SUCCESS)
        return add_example(&r);
    return config_write(&r.config, config);
}
