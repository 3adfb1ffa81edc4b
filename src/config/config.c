/*
 * Configurations are keys of the table. The fields and names come from the generator's list
 * (config_facts.h).
 */
#include "config/config.h"

#include "config/facts.h"
#include "core/struct_size.h"

int config_compare(const flash_config_t *a, const flash_config_t *b) {
    for (int32_t field = 0; field < CONFIG_N_FIELDS; field++) {
        const int32_t x = config_field(a, field), y = config_field(b, field);
        if (x != y)
            return x < y ? -1 : 1;
    }
    return 0;
}

flash_status_t config_read(flash_config_t *ours, const flash_config_t *theirs) {
    return STRUCT_READ(flash_config_t, ours, theirs);
}

flash_status_t config_write(const flash_config_t *ours, flash_config_t *theirs) {
    return struct_write(ours, sizeof *ours, theirs, "flash_config_t");
}

const char *config_arch_name(int32_t arch) {
    switch (arch) {
#define ARCH_NAME(NAME, name)                                                                      \
    case FLASH_ARCH_##NAME:                                                                        \
        return #NAME;
        FLASH_CONFIG_ARCHS(ARCH_NAME)
#undef ARCH_NAME
    default:
        return "unknown";
    }
}

const char *config_dtype_name(int32_t dtype) {
    switch (dtype) {
#define DTYPE_NAME(name)                                                                           \
    case FLASH_DTYPE_##name:                                                                       \
        return #name;
        FLASH_CONFIG_DTYPES(DTYPE_NAME)
#undef DTYPE_NAME
    default:
        return "unknown";
    }
}
