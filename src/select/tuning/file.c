/*
 * The value of FLASH_TUNING: a file of measured results, or "none".
 */
#define _POSIX_C_SOURCE 200809L /* getdelim */
#include "select/tuning/file.h"

#include "core/status.h"
#include "select/tuning/parse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
