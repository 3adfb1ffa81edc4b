/*
 * An environment variable is read once, and its status is kept.
 */
#include "core/environment.h"

#include "core/status.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_set(const char *name) {
    const char *value = getenv(name);
    return value != NULL && *value != '\0';
}

/* Before version 0.2 the names began with FLASH_, which is everybody's. */
static flash_status_t refuse_former_name(const char *name) {
    char former[64];
    snprintf(former, sizeof former, "FLASH_%s", name + strlen("FLASHATTN_"));
    FLASH_REQUIRE(!is_set(former), FLASH_ERROR_INVALID_ARGUMENT,
                  "the environment variable %s is set, whose name is %s now", former, name);
    return FLASH_SUCCESS;
}

void environment_parse(environment_variable_t *variable, const char *name,
                       flash_status_t (*parse)(const char *value)) {
    const int errno_before = errno; /* a call leaves it as it was */
    variable->status = refuse_former_name(name);
    if (variable->status == FLASH_SUCCESS && is_set(name))
        variable->status = parse(getenv(name));
    if (variable->status != FLASH_SUCCESS)
        status_copy_text(status_message(), variable->message, sizeof variable->message);
    errno = errno_before;
}

flash_status_t environment_read(environment_variable_t *variable, void (*read)(void)) {
    pthread_once(&variable->once, read);
    FLASH_REQUIRE(variable->status == FLASH_SUCCESS, variable->status, "%s", variable->message);
    return FLASH_SUCCESS;
}
