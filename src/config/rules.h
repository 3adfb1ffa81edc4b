/*
 * This function says whether a configuration is legal.
 */
#ifndef FLASH_CONFIG_RULES_H
#define FLASH_CONFIG_RULES_H

#include "core/status.h"
#include "flashattn.h"

/* Returns INVALID_CONFIG with the first rule of its family that the configuration breaks. */
flash_status_t config_check(const flash_config_t *config);

/* Defines check() of a family_op_t: the rules are a list as in kernels/common/rules.h. */
#define DEFINE_CHECK(RULES) DEFINE_CHECK_NAMED(check, RULES)
#define DEFINE_CHECK_NAMED(name, RULES)                                                            \
    static flash_status_t name(const flash_config_t *config) {                                     \
        RULES(REQUIRE_RULE, config) return FLASH_SUCCESS;                                          \
    }
#define REQUIRE_RULE(condition, ...)                                                               \
    FLASH_REQUIRE(condition, FLASH_ERROR_INVALID_CONFIG, __VA_ARGS__);

#endif
