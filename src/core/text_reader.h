/*
 * Reading a line of text word by word: the short form of a configuration, a measured result. What
 * cannot be taken leaves the reader where it is.
 */
#ifndef FLASH_TEXT_READER_H
#define FLASH_TEXT_READER_H

#include "flashattn.h"

#include <stdbool.h>

typedef struct text_reader {
    const char *text;
    const char *at;      /* the place in it */
    int32_t line_number; /* for messages; 0: the text is not part of a larger one */
} text_reader_t;

/* Refuses what is at the place, and names the place. */
flash_status_t text_expected(const text_reader_t *r, const char *what);

void text_skip_blanks(text_reader_t *r);

/* Takes exactly these characters, if they are there. */
bool text_take(text_reader_t *r, const char *characters);

/* Takes these characters, unless a longer word begins with them. */
bool text_take_word(text_reader_t *r, const char *word);

/* Says whether a character can be part of a word. */
bool text_is_word_char(char c);

#endif
