/*
 * This header reads the FLASHATTN_* environment variables (documented in flashattn.h). Each belongs
 * to the file that parses it, and is read once, when a call first needs it.
 */
#ifndef FLASH_ENVIRONMENT_H
#define FLASH_ENVIRONMENT_H

#include "flashattn.h"

#include <pthread.h>

/* The result of reading a variable; static, and initialised by ENVIRONMENT_VARIABLE_INIT. */
typedef struct environment_variable {
    pthread_once_t once;
    flash_status_t status;
    char message[512];
} environment_variable_t;

#define ENVIRONMENT_VARIABLE_INIT                                                                  \
    { PTHREAD_ONCE_INIT, FLASH_SUCCESS, "" }

/* Calls read() once per process, which calls environment_parse(). Returns INVALID_ARGUMENT, with
 * the same message at every call, when the value could not be understood. */
flash_status_t environment_read(environment_variable_t *variable, void (*read)(void));

/* Calls parse() with the value of the variable `name`, FLASHATTN_..., unless it is unset or empty.
 * The variable is refused while FLASH_..., its former name, is set: nothing would follow that. */
void environment_parse(environment_variable_t *variable, const char *name,
                       flash_status_t (*parse)(const char *value));

#endif
