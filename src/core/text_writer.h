/*
 * A text writer makes a line piece by piece, such as a configuration's short form.
 */
#ifndef FLASH_TEXT_WRITER_H
#define FLASH_TEXT_WRITER_H

#include "flashattn.h"

/* The text has room for every line that is written, so that no piece is ever cut. */
typedef struct text_writer {
    char text[FLASH_TUNING_TEXT_SIZE];
    size_t length;
    const char *separator; /* put before the next word */
} text_writer_t;

void text_put(text_writer_t *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Writes the separator and the word. The next separator is '+'. */
void text_put_word(text_writer_t *w, const char *word);

/* Copies the line into the caller's text[0 ... size). `what` names the line in messages. Returns
 * INVALID_ARGUMENT (text is NULL) or BUFFER_TOO_SMALL. */
flash_status_t text_copy(const text_writer_t *w, const char *what, char *text, size_t size);

#endif
