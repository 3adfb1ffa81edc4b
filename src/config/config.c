/*
 * Order of configurations, names, and the way in and out of the interface. The fields and names
 * come from the generator's one list (config_facts.h).
 */
#include "config/config.h"

#include "config_facts.h"
#include "core/struct_size.h"

int config_compare(const flash_config_t *a, const flash_config_t *b) {
#define COMPARE_FIELD(field)                                                                       \
    if (a->field != b->field)                                                                      \
        return a->field < b->field ? -1 : 1;
    FLASH_CONFIG_FIELDS(COMPARE_FIELD)
#undef COMPARE_FIELD
    return 0;
}

flash_status_t config_read(flash_config_t *ours, const flash_config_t *theirs) {
    return struct_read(ours, sizeof *ours, theirs, "flash_config_t");
}

flash_status_t config_write(const flash_config_t *ours, flash_config_t *theirs) {
    return struct_write(ours, sizeof *ours, theirs, "flash_config_t");
}

const char *config_arch_name(int32_t arch) {
    switch (arch) {
#define ARCH_NAME(name, layout)                                                                    \
    case FLASH_ARCH_##name:                                                                        \
        return #name;
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

int64_t dtype_size(int32_t dtype) {
    switch (dtype) {
    case FLASH_DTYPE_FP16:
    case FLASH_DTYPE_BF16:
        return 2;
    case FLASH_DTYPE_FP32:
        return 4;
    default:
        return 0;
    }
}

bool config_is_cpu(const flash_config_t *config) {
    return config->arch < FLASH_ARCH_SM80;
}
