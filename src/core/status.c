/*
 * Status names, and the thread's last error with its status.
 */
#define _POSIX_C_SOURCE 200809L /* strnlen */
#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[512];
static _Thread_local flash_status_t last_status;

flash_status_t status_fail(flash_status_t status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    last_status = status;
    return status;
}

const char *status_message(void) {
    return last_error;
}

void status_copy_text(const char *text, char *buffer, size_t size) {
    if (buffer == NULL || size == 0)
        return;
    const size_t length = strnlen(text, size - 1);
    memcpy(buffer, text, length);
    buffer[length] = '\0';
}

const char *flash_last_error(void) {
    return status_message();
}

flash_status_t flash_last_status(void) {
    return last_status;
}

const char *flash_status_string(flash_status_t status) {
#define FLASH_STATUS_CASE(name)                                                                    \
    case name:                                                                                     \
        return #name
    switch (status) {
        FLASH_STATUS_CASE(FLASH_SUCCESS);
        FLASH_STATUS_CASE(FLASH_ERROR_INVALID_ARGUMENT);
        FLASH_STATUS_CASE(FLASH_ERROR_INVALID_CONFIG);
        FLASH_STATUS_CASE(FLASH_ERROR_WORKSPACE_TOO_SMALL);
        FLASH_STATUS_CASE(FLASH_ERROR_BUFFER_TOO_SMALL);
        FLASH_STATUS_CASE(FLASH_ERROR_UNSUPPORTED);
        FLASH_STATUS_CASE(FLASH_ERROR_NOT_BUILT);
        FLASH_STATUS_CASE(FLASH_ERROR_OUT_OF_MEMORY);
        FLASH_STATUS_CASE(FLASH_ERROR_NO_DEVICE);
        FLASH_STATUS_CASE(FLASH_ERROR_CUDA);
        FLASH_STATUS_CASE(FLASH_ERROR_INTERNAL);
    default:
        return "unknown flash_status_t";
    }
#undef FLASH_STATUS_CASE
}
