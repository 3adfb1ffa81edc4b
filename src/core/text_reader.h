/*
 * A text reader reads a line word by word: the short form of a configuration, or a measured result.
 * It stays where it is when the text is not what was asked for.
 */
#ifndef FLASH_TEXT_READER_H
#define FLASH_TEXT_READER_H

#include "flashattn.h"

#include <stdbool.h>

typedef struct text_reader {
    const char *text;
    const char *at;      /* the next character */
    int32_t line_number; /* for messages; 0: the text is a single line */
} text_reader_t;

/* Returns INVALID_ARGUMENT, with a message that says what was expected at which position. */
flash_status_t text_expected(const text_reader_t *r, const char *what);

void text_skip_blanks(text_reader_t *r);

/* Takes exactly these characters, if they come next. */
bool text_take(text_reader_t *r, const char *characters);

/* Takes this word, if it comes next and no longer word begins with it. */
bool text_take_word(text_reader_t *r, const char *word);

/* Takes a decimal number, with no blanks before it and with a '-' if there is one, that 64 bits can
 * hold. errno stays as it is. */
bool text_take_number(text_reader_t *r, int64_t *value);

bool text_is_word_char(char c);

#endif
