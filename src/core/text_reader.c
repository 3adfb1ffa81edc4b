/*
 * See text_reader.h. The words come from the generator's one list (config_facts.h).
 */
#include "core/text_reader.h"

#include "config_facts.h"
#include "core/status.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

flash_status_t text_expected(const text_reader_t *r, const char *what) {
    char line[24] = "";
    if (r->line_number > 0)
        snprintf(line, sizeof line, "line %" PRId32 ": ", r->line_number);
    return status_fail(FLASH_ERROR_INVALID_ARGUMENT, "%sexpected %s at position %td of \"%.200s\"",
                       line, what, r->at - r->text, r->text);
}

void text_skip_blanks(text_reader_t *r) {
    while (*r->at == ' ' || *r->at == '\t')
        r->at++;
}

bool text_take(text_reader_t *r, const char *characters) {
    const size_t length = strlen(characters);
    if (strncmp(r->at, characters, length) != 0)
        return false;
    r->at += length;
    return true;
}

bool text_is_word_char(char c) {
    return isalnum((unsigned char)c) || c == '_';
}

bool text_take_word(text_reader_t *r, const char *word) {
    text_reader_t ahead = *r;
    if (!text_take(&ahead, word) || text_is_word_char(*ahead.at))
        return false;
    *r = ahead;
    return true;
}

flash_status_t text_read_dtype(text_reader_t *r, int32_t *dtype) {
#define READ_DTYPE(name)                                                                           \
    if (text_take_word(r, #name)) {                                                                \
        *dtype = FLASH_DTYPE_##name;                                                               \
        return FLASH_SUCCESS;                                                                      \
    }
    FLASH_CONFIG_DTYPES(READ_DTYPE)
#undef READ_DTYPE
    return text_expected(r, "an element type (FP16, BF16, FP32)");
}

bool text_take_feature(text_reader_t *r, int32_t *features) {
#define TAKE_FEATURE(name, word)                                                                   \
    if (!(*features & FLASH_FEATURE_##name) && text_take_word(r, word)) {                          \
        *features |= FLASH_FEATURE_##name;                                                         \
        return true;                                                                               \
    }
    FLASH_CONFIG_FEATURES(TAKE_FEATURE)
#undef TAKE_FEATURE
    return false;
}
