/*
 * This file has the names of fields. The tables of facts are generated: config_facts.c.
 */
#include "config/facts.h"

const char *config_field_name(int32_t field) {
    static const char *const names[CONFIG_N_FIELDS] = {
#define FIELD_NAME(field) #field,
        FLASH_CONFIG_FIELDS(FIELD_NAME)
#undef FIELD_NAME
    };
    return names[field];
}
