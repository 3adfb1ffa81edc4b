/*
 * This file writes a line of text piece by piece.
 */
#include "core/text_writer.h"

#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void text_put(text_writer_t *w, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int n = vsnprintf(w->text + w->length, sizeof w->text - w->length, format, arguments);
    va_end(arguments);
    w->length += (size_t)n;
}

void text_put_word(text_writer_t *w, const char *word) {
    text_put(w, "%s%s", w->separator, word);
    w->separator = "+";
}

flash_status_t text_copy(const text_writer_t *w, const char *what, char *text, size_t size) {
    FLASH_REQUIRE(text != NULL, FLASH_ERROR_INVALID_ARGUMENT, "text is NULL");
    FLASH_REQUIRE(w->length < size, FLASH_ERROR_BUFFER_TOO_SMALL,
                  "%s takes %zu bytes, the buffer has %zu", what, w->length + 1, size);
    memcpy(text, w->text, w->length + 1);
    return FLASH_SUCCESS;
}
