/*
 * A configuration is legal if the rules of single fields hold, which the generator provides
 * (config_facts.c), and the rules between fields, a list in the header of the family's kernels.
 */
#include "config/rules.h"

#include "config/facts.h"
#include "config/family.h"
#include "config/words.h"

#include <inttypes.h>

static bool is_among(int32_t value, const int32_t *values, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        if (value == values[i])
            return true;
    return false;
}

static flash_status_t check_range(const char *name, int32_t value, const config_rule_t *rule) {
    FLASH_REQUIRE(value >= rule->low && value <= rule->high, FLASH_ERROR_INVALID_CONFIG,
                  "%s is %" PRId32 ": not within %" PRId32 " ... %" PRId32, name, value, rule->low,
                  rule->high);
    FLASH_REQUIRE(value % rule->n == 0, FLASH_ERROR_INVALID_CONFIG,
                  "%s is %" PRId32 ": not a multiple of %" PRId32, name, value, rule->n);
    return FLASH_SUCCESS;
}

static flash_status_t check_features(const char *name, int32_t value, const config_rule_t *rule,
                                     const char *family) {
    FLASH_REQUIRE((value & ~rule->high) == 0, FLASH_ERROR_INVALID_CONFIG,
                  "%s is 0x%" PRIx32 ": the %s family does not have 0x%" PRIx32, name,
                  (uint32_t)value, family, (uint32_t)(value & ~rule->high));
    char missing[WORDS_FEATURES_SIZE];
    words_name_features(rule->low & ~value, missing);
    FLASH_REQUIRE((rule->low & ~value) == 0, FLASH_ERROR_INVALID_CONFIG,
                  "%s has no %s: %s rows need it", name, missing, family);
    return FLASH_SUCCESS;
}

static flash_status_t check_field(const char *name, int32_t value, const config_rule_t *rule,
                                  const char *family) {
    switch (rule->kind) {
    case RULE_ZERO:
        FLASH_REQUIRE(value == 0, FLASH_ERROR_INVALID_CONFIG,
                      "%s is %" PRId32 ": it means nothing to the %s family and must be 0", name,
                      value, family);
        return FLASH_SUCCESS;
    case RULE_CHOICE:
        FLASH_REQUIRE(is_among(value, rule->values, rule->n), FLASH_ERROR_INVALID_CONFIG,
                      "%s is %" PRId32 ": the family has no such value", name, value);
        return FLASH_SUCCESS;
    case RULE_RANGE:
        return check_range(name, value, rule);
    case RULE_BITS:
        return check_features(name, value, rule, family);
    }
    return status_fail(FLASH_ERROR_INTERNAL, "%s has a rule of no kind", name);
}

static flash_status_t check_needs(const flash_config_t *config, const config_layout_t *layout) {
    for (int32_t i = 0; i < layout->n_needs; i++) {
        const config_need_t *need = &layout->needs[i];
        FLASH_REQUIRE(!config_field(config, need->field) || config_field(config, need->needed),
                      FLASH_ERROR_INVALID_CONFIG, "%s is 1: it needs %s, which is 0",
                      config_field_name(need->field), config_field_name(need->needed));
    }
    return FLASH_SUCCESS;
}

static flash_status_t check_types(const flash_config_t *config, const row_facts_t *facts) {
    for (int32_t i = 0; i < facts->n_types; i++)
        if (facts->types[i].dtype == config->dtype &&
            facts->types[i].operand_dtype == config->operand_dtype)
            return FLASH_SUCCESS;
    return status_fail(FLASH_ERROR_INVALID_CONFIG,
                       "operand_dtype is %" PRId32
                       ": the family has no such value with dtype %" PRId32,
                       config->operand_dtype, config->dtype);
}

/* A kernel has one name: a d_head_v that is d_head is written as 0. */
static flash_status_t check_d_head_v(const flash_config_t *config) {
    FLASH_REQUIRE(config->d_head_v == 0 || config->d_head_v != config->d_head,
                  FLASH_ERROR_INVALID_CONFIG,
                  "d_head_v is %" PRId32 ": 0 where it is that of d_head", config->d_head_v);
    return FLASH_SUCCESS;
}

flash_status_t config_check(const flash_config_t *config) {
    const family_t *family;
    FLASH_TRY(family_require(config->arch, FLASH_ERROR_INVALID_CONFIG, &family));
    const row_facts_t *facts = family_rows(family->facts, config->op);
    FLASH_REQUIRE(facts != NULL, FLASH_ERROR_INVALID_CONFIG,
                  "op is %" PRId32 ": the family has no such value", config->op);
    for (int32_t field = 0; field < CONFIG_N_FIELDS; field++)
        FLASH_TRY(check_field(config_field_name(field), config_field(config, field),
                              &facts->rules[field], family->facts->name));
    FLASH_TRY(check_needs(config, facts->layout));
    FLASH_TRY(check_types(config, facts));
    FLASH_TRY(check_d_head_v(config));
    const family_op_t *op = family->ops[config->op];
    return op->check == NULL ? FLASH_SUCCESS : op->check(config);
}
