/*
 * A function inside the library fails by returning a status and leaving a message.
 */
#ifndef FLASH_STATUS_H
#define FLASH_STATUS_H

#include "flashattn.h"

/* Sets the calling thread's last error and returns status. */
flash_status_t status_fail(flash_status_t status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Returns the calling thread's last error. */
const char *status_message(void);

/* Copies text into buffer[0 ... size), cut to fit and NUL-terminated. buffer may be NULL. */
void status_copy_text(const char *text, char *buffer, size_t size);

/* Returns from the caller with this status and message unless the condition holds. */
#define FLASH_REQUIRE(condition, status, ...)                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            status_fail((status), __VA_ARGS__);                                                    \
            return (status);                                                                       \
        }                                                                                          \
    } while (0)

/* Returns from the caller with the status of a call that failed. */
#define FLASH_TRY(call)                                                                            \
    do {                                                                                           \
        const flash_status_t try_status = (call);                                                  \
        if (try_status != FLASH_SUCCESS)                                                           \
            return try_status;                                                                     \
    } while (0)

#endif
