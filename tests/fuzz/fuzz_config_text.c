/*
 * The short form: any text is read or refused, any configuration is written or refused, and what
 * is written reads as the same configuration.
 */
#include "check.h"

#include <string.h>

static void check_config(const flash_config_t *config) {
    char text[FLASH_CONFIG_TEXT_SIZE];
    flash_config_t again = FLASH_CONFIG_INIT;
    const flash_status_t status = flash_config_format(config, text, sizeof text);
    if (status != FLASH_SUCCESS) {
        CHECK(status == FLASH_ERROR_INVALID_ARGUMENT);
        return;
    }
    CHECK(flash_config_parse(text, &again) == FLASH_SUCCESS);
    CHECK(memcmp(&again, config, sizeof again) == 0);
}

static void read_text(const uint8_t *data, size_t size) {
    flash_config_t config = FLASH_CONFIG_INIT;
    char *text = malloc(size + 1); /* exactly: reading past the end is seen */
    CHECK(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    const flash_status_t status = flash_config_parse(text, &config);
    if (status == FLASH_SUCCESS) {
        char again[FLASH_CONFIG_TEXT_SIZE];
        CHECK(flash_config_format(&config, again, sizeof again) == FLASH_SUCCESS);
        check_config(&config);
    } else {
        CHECK(status == FLASH_ERROR_INVALID_ARGUMENT);
    }
    free(text);
}

static void write_config(const uint8_t *data, size_t size) {
    flash_config_t config = FLASH_CONFIG_INIT;
    const size_t fields = sizeof config - offsetof(flash_config_t, arch);
    memcpy(&config.arch, data, size < fields ? size : fields);
    check_config(&config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    read_text(data, size);
    write_config(data, size);
    return 0;
}
