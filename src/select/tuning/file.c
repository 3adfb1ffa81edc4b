/*
 * FLASHATTN_TUNING names a file of measured results, or is "none".
 */
#define _POSIX_C_SOURCE 200809L /* getdelim, fdopen */
#include "select/tuning/file.h"

#include "core/status.h"
#include "select/tuning/parse.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Returns why an open file cannot be read to its end; NULL if it can. */
static const char *obstacle(int descriptor) {
    struct stat status;
    if (fstat(descriptor, &status) != 0)
        return strerror(errno);
    if (S_ISDIR(status.st_mode))
        return strerror(EISDIR);
    return S_ISREG(status.st_mode) ? NULL : "not a regular file";
}

/* Opens a file without ever blocking, and refuses what is no regular file, such as a FIFO. */
static flash_status_t open_file(const char *path, FILE **file) {
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    const char *why = descriptor < 0 ? strerror(errno) : obstacle(descriptor);
    *file = why == NULL ? fdopen(descriptor, "r") : NULL;
    if (*file != NULL)
        return FLASH_SUCCESS;
    if (descriptor >= 0)
        close(descriptor);
    return status_fail(FLASH_ERROR_INVALID_ARGUMENT, "%.200s: %s", path,
                       why != NULL ? why : "no memory to read it");
}

/* Reads the file's text, which the caller frees; NULL, with errno, on errors or if it has a NUL. */
static char *read_text(FILE *file) {
    char *text = NULL;
    size_t size = 0;
    errno = 0;
    ssize_t length = getdelim(&text, &size, '\0', file); /* to the end: text has no NUL */
    if (length < 0 && feof(file) && text != NULL) {
        text[0] = '\0';
        length = 0;
    }
    if (length >= 0 && feof(file) && !ferror(file))
        return text;
    if (errno == 0)
        errno = EILSEQ;
    free(text);
    return NULL;
}

static flash_status_t read_file(const char *path, char **text) {
    FILE *file;
    FLASH_TRY(open_file(path, &file));
    *text = read_text(file);
    const int error = errno;
    fclose(file);
    FLASH_REQUIRE(*text != NULL, FLASH_ERROR_INVALID_ARGUMENT, "%.200s: %s", path, strerror(error));
    return FLASH_SUCCESS;
}

static flash_status_t read_none(char **text) {
    *text = strdup(FLASH_TUNING_HEADER);
    FLASH_REQUIRE(*text != NULL, FLASH_ERROR_OUT_OF_MEMORY, "no memory for measured results");
    return FLASH_SUCCESS;
}

flash_status_t tuning_read(const char *value, bool trace, tuning_results_t **results) {
    const bool is_file = strcmp(value, "none") != 0;
    char *text;
    FLASH_TRY(is_file ? read_file(value, &text) : read_none(&text));
    const flash_status_t status = tuning_parse(text, trace, results);
    free(text);
    if (status == FLASH_SUCCESS)
        (*results)->alone = !is_file;
    return status;
}
