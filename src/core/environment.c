/*
 * An environment variable is read once, and its status is kept.
 */
#include "core/environment.h"

#include "core/status.h"

#include <stdlib.h>

void environment_parse(environment_variable_t *variable, const char *name,
                       flash_status_t (*parse)(const char *value)) {
    const char *value = getenv(name);
    if (value == NULL || *value == '\0')
        return;
    variable->status = parse(value);
    if (variable->status != FLASH_SUCCESS)
        status_copy_text(status_message(), variable->message, sizeof variable->message);
}

flash_status_t environment_read(environment_variable_t *variable, void (*read)(void)) {
    pthread_once(&variable->once, read);
    FLASH_REQUIRE(variable->status == FLASH_SUCCESS, variable->status, "%s", variable->message);
    return FLASH_SUCCESS;
}
