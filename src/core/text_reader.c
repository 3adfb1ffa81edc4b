/*
 * This file reads a line of text word by word.
 */
#include "core/text_reader.h"

#include "core/status.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
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
    text_reader_t after_word = *r;
    if (!text_take(&after_word, word) || text_is_word_char(*after_word.at))
        return false;
    *r = after_word;
    return true;
}

bool text_take_number(text_reader_t *r, int64_t *value) {
    const int errno_before = errno;
    char *end;
    if (!isdigit((unsigned char)r->at[*r->at == '-']))
        return false;
    errno = 0;
    *value = strtoll(r->at, &end, 10);
    const bool fits = errno == 0;
    errno = errno_before;
    if (fits)
        r->at = end;
    return fits;
}
