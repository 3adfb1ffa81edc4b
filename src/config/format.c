/*
 * This file writes the short form of a configuration; parse.c reads it.
 *
 *   (FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+buffer+opt_softmax+causal
 *   SM90 (BF16, 128, 128, 128, 12): stages_3+overlap+ping_pong+persistent+fixed_reference
 *   SM90 (BF16, 192/128, 128, 112, 12): stages_2+overlap+ping_pong
 *   AVX512 (BF16, any, 96, 128): causal+window+softcap+varlen+paged+bias
 */
#include "config/config.h"
#include "config/facts.h"
#include "config/family.h"
#include "config/words.h"
#include "core/status.h"

#include <inttypes.h>

/* ---- Values that the short form cannot express ---- */

static flash_status_t check_enumerators(const flash_config_t *config) {
    const int32_t unknown = config->features & ~words_features();
    FLASH_REQUIRE(words_op(config->op) != NULL, FLASH_ERROR_INVALID_ARGUMENT,
                  "op is %" PRId32 ": it has no word", config->op);
    FLASH_REQUIRE(words_dtype(config->dtype) != NULL, FLASH_ERROR_INVALID_ARGUMENT,
                  "dtype is %" PRId32 ": it has no word", config->dtype);
    FLASH_REQUIRE(config->operand_dtype == 0 || words_dtype(config->operand_dtype) != NULL,
                  FLASH_ERROR_INVALID_ARGUMENT, "operand_dtype is %" PRId32 ": it has no word",
                  config->operand_dtype);
    FLASH_REQUIRE(unknown == 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "features is 0x%" PRIx32 ": the bits 0x%" PRIx32 " have no word",
                  (uint32_t)config->features, (uint32_t)unknown);
    return FLASH_SUCCESS;
}

static flash_status_t check_switches(const flash_config_t *config, const config_layout_t *layout) {
    for (int32_t i = 0; i < layout->n_words; i++) {
        const config_word_t *word = &layout->words[i];
        const int32_t value = config_field(config, word->fields[0]);
        FLASH_REQUIRE(word->n_counts > 0 || value == 0 || value == 1, FLASH_ERROR_INVALID_ARGUMENT,
                      "%s is %" PRId32 ": the short form has a word for 1 alone",
                      config_field_name(word->fields[0]), value);
    }
    return FLASH_SUCCESS;
}

static flash_status_t check_absent(const flash_config_t *config, const family_facts_t *facts) {
    const config_rule_t *rules = facts->rows[config->op]->rules;
    for (int32_t field = 0; field < CONFIG_N_FIELDS; field++)
        FLASH_REQUIRE(rules[field].kind != RULE_ZERO || config_field(config, field) == 0,
                      FLASH_ERROR_INVALID_ARGUMENT,
                      "%s is %" PRId32 ": the short form of the %s family has no place for it",
                      config_field_name(field), config_field(config, field), facts->name);
    return FLASH_SUCCESS;
}

/* ---- The text ---- */

/* Writes the family, and the operation unless it is the forward pass. One family needs no name. */
static void put_name(text_writer_t *w, const flash_config_t *config, const family_facts_t *facts) {
    if (config->op != FLASH_OP_FORWARD)
        text_put(w, "%s %s ", facts->name, words_op(config->op));
    else if (config->arch != FLASH_CONFIG_UNNAMED_ARCH)
        text_put(w, "%s ", facts->name);
}

static void put_shape(text_writer_t *w, const flash_config_t *config,
                      const config_layout_t *layout) {
    text_put(w, "(%s", words_dtype(config->dtype));
    if (config->operand_dtype != 0)
        text_put(w, "/%s", words_dtype(config->operand_dtype));
    text_put(w, ", ");
    if (layout->any_d_head && config->d_head == 0)
        text_put(w, "any");
    else
        text_put(w, "%" PRId32, config->d_head);
    if (config->d_head_v != 0)
        text_put(w, "/%" PRId32, config->d_head_v);
    for (int32_t i = 0; i < layout->n_shape; i++)
        text_put(w, ", %" PRId32, config_field(config, layout->shape[i]));
    text_put(w, ")");
}

static void put_counts(text_writer_t *w, const flash_config_t *config, const config_word_t *word) {
    text_put_word(w, word->word);
    for (int32_t i = 0; i < word->n_counts; i++)
        text_put(w, "_%" PRId32, config_field(config, word->fields[i]));
    text_put(w, "%s", word->suffix);
}

static void put_words(text_writer_t *w, const flash_config_t *config,
                      const config_layout_t *layout) {
    w->separator = ": ";
    for (int32_t i = 0; i < layout->n_words; i++) {
        const config_word_t *word = &layout->words[i];
        if (word->n_counts > 0)
            put_counts(w, config, word);
        else if (config_field(config, word->fields[0]))
            text_put_word(w, word->word);
    }
    words_put_features(w, config->features);
}

flash_status_t flash_config_format(const flash_config_t *config, char *text, size_t size) {
    flash_config_t known;
    text_writer_t w = {.length = 0};
    const family_t *family;
    FLASH_TRY(config_read(&known, config));
    FLASH_TRY(family_require(known.arch, FLASH_ERROR_INVALID_ARGUMENT, &family));
    FLASH_TRY(check_enumerators(&known));
    const row_facts_t *rows = family_rows(family->facts, known.op);
    FLASH_REQUIRE(rows != NULL, FLASH_ERROR_INVALID_ARGUMENT,
                  "op is %" PRId32 ": the %s family does not have it", known.op,
                  family->facts->name);
    FLASH_TRY(check_switches(&known, rows->layout));
    FLASH_TRY(check_absent(&known, family->facts));
    put_name(&w, &known, family->facts);
    put_shape(&w, &known, rows->layout);
    put_words(&w, &known, rows->layout);
    return text_copy(&w, "the short form", text, size);
}
