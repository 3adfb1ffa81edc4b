/*
 * Look-up: any configuration is found, or refused with a message; what is found is the
 * configuration asked for, at the index where a walk over the table finds it.
 */
#include "check.h"

#include <string.h>

/* Starts at a row of the table, so that near misses are common, and changes some fields. */
static flash_config_t make_config(const uint8_t *data, size_t size) {
    flash_config_t config = FLASH_CONFIG_INIT;
    const size_t n_fields = (sizeof config - offsetof(flash_config_t, arch)) / sizeof(int32_t);
    CHECK(flash_kernel_config(flash_kernel_at(data[0] % flash_kernel_count()), &config) ==
          FLASH_SUCCESS);
    for (size_t i = 1; i + 5 <= size; i += 5) {
        int32_t value;
        memcpy(&value, data + i + 1, sizeof value);
        memcpy((char *)&config.arch + data[i] % n_fields * sizeof value, &value, sizeof value);
    }
    return config;
}

static const flash_kernel_t *walk(const flash_config_t *config) {
    for (int32_t i = 0; i < flash_kernel_count(); i++) {
        flash_config_t row = FLASH_CONFIG_INIT;
        CHECK(flash_kernel_config(flash_kernel_at(i), &row) == FLASH_SUCCESS);
        if (memcmp(&row, config, sizeof row) == 0)
            return flash_kernel_at(i);
    }
    return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0)
        return 0;
    const flash_config_t config = make_config(data, size);
    const flash_kernel_t *found = flash_lookup_kernel(&config);
    const flash_kernel_t *row = walk(&config);
    if (found != NULL) {
        CHECK(found == row);
        CHECK(flash_kernel_name(found) != NULL);
    } else {
        CHECK(strcmp(flash_last_error(), "") != 0);
        CHECK(row == NULL || strstr(flash_last_error(), "need") != NULL);
    }
    return 0;
}
