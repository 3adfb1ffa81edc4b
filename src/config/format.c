/*
 * Writing the short form of a configuration (config_parse.c reads it).
 *
 *   (FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+buffer+opt_softmax+causal
 *   SM90 (BF16, 128, 128, 176, 12): stages_2+overlap+ping_pong+persistent+fixed_reference
 *   AVX512 (BF16, any, 64, 128): causal+window+softcap+varlen
 *
 * The words come from the generator's one list (config_facts.h).
 */
#include "config/config.h"
#include "config_facts.h"
#include "core/status.h"
#include "core/text_writer.h"

#include <inttypes.h>

static void put_cpu(text_writer_t *w, const flash_config_t *config) {
    text_put(w, "%s (%s, ", config_arch_name(config->arch), config_dtype_name(config->dtype));
    if (config->d_head == 0)
        text_put(w, "any");
    else
        text_put(w, "%" PRId32, config->d_head);
    text_put(w, ", %" PRId32 ", %" PRId32 ")", config->B_r, config->B_c);
    text_put_features(w, config->features);
}

static void put_cuda_tuple(text_writer_t *w, const flash_config_t *config) {
    text_put(w, "(%s, %" PRId32 ", %" PRId32 ", %" PRId32 ", %" PRId32 ")",
             config_dtype_name(config->dtype), config->d_head, config->B_r, config->B_c,
             config->n_warps);
}

static void put_sm80(text_writer_t *w, const flash_config_t *config) {
    put_cuda_tuple(w, config);
#define PUT_STRATEGY(field, word)                                                                  \
    if (config->field)                                                                             \
        text_put_word(w, word);
    FLASH_CONFIG_STRATEGIES(PUT_STRATEGY)
    text_put_word(w, "load");
    text_put(w, "_%" PRId32 "_%" PRId32 "_%" PRId32 "_tiles", config->Q_mma_load_K_fragments,
             config->K_mma_load_K_fragments, config->V_mma_load_K_fragments);
    FLASH_CONFIG_STRATEGIES_AFTER_LOAD(PUT_STRATEGY)
    text_put_features(w, config->features);
}

static void put_sm90(text_writer_t *w, const flash_config_t *config) {
    text_put(w, "%s ", config_arch_name(config->arch));
    put_cuda_tuple(w, config);
    text_put_word(w, "stages");
    text_put(w, "_%" PRId32, config->n_stages);
    FLASH_CONFIG_SM90_STRATEGIES(PUT_STRATEGY)
#undef PUT_STRATEGY
    text_put_features(w, config->features);
}

/* What the short form has no place for. */
static flash_status_t check_writable(const flash_config_t *config) {
    int32_t unknown = config->features;
#define KNOWN_FEATURE(name, word) unknown &= ~FLASH_FEATURE_##name;
    FLASH_CONFIG_FEATURES(KNOWN_FEATURE)
#undef KNOWN_FEATURE
    FLASH_REQUIRE(unknown == 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "features is 0x%x: the bits 0x%x have no word", (unsigned)config->features,
                  (unsigned)unknown);
    FLASH_REQUIRE(dtype_size(config->dtype) != 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "dtype is %d: it has no word", config->dtype);
    return FLASH_SUCCESS;
}

static flash_status_t check_writable_cpu(const flash_config_t *config) {
#define CHECK_ABSENT(field)                                                                        \
    FLASH_REQUIRE(config->field == 0, FLASH_ERROR_INVALID_ARGUMENT,                                \
                  #field " is %d: the short form of the %s family has no place for it",            \
                  config->field, config_arch_name(config->arch));
    CHECK_ABSENT(n_warps)
    FLASH_CONFIG_SM80_FIELDS(CHECK_ABSENT)
    FLASH_CONFIG_SM90_FIELDS(CHECK_ABSENT)
    return check_writable(config);
}

static flash_status_t check_writable_sm80(const flash_config_t *config) {
#define CHECK_SWITCH(field, word)                                                                  \
    FLASH_REQUIRE(config->field == 0 || config->field == 1, FLASH_ERROR_INVALID_ARGUMENT,          \
                  #field " is %d: the short form has a word for 1 alone", config->field);
    FLASH_CONFIG_STRATEGIES(CHECK_SWITCH)
    FLASH_CONFIG_STRATEGIES_AFTER_LOAD(CHECK_SWITCH)
    FLASH_CONFIG_SM90_FIELDS(CHECK_ABSENT)
    return check_writable(config);
}

static flash_status_t check_writable_sm90(const flash_config_t *config) {
    FLASH_CONFIG_SM90_STRATEGIES(CHECK_SWITCH)
    FLASH_CONFIG_SM80_FIELDS(CHECK_ABSENT)
#undef CHECK_SWITCH
#undef CHECK_ABSENT
    return check_writable(config);
}

static flash_status_t write_config(text_writer_t *w, const flash_config_t *config) {
    w->separator = ": ";
    switch (config->arch) {
#define WRITE_ARCH(name, layout)                                                                   \
    case FLASH_ARCH_##name:                                                                        \
        FLASH_TRY(check_writable_##layout(config));                                                \
        put_##layout(w, config);                                                                   \
        return FLASH_SUCCESS;
        FLASH_CONFIG_ARCHS(WRITE_ARCH)
#undef WRITE_ARCH
    default:
        return status_fail(FLASH_ERROR_INVALID_ARGUMENT, "arch is %d: no such kernel family",
                           config->arch);
    }
}

flash_status_t flash_config_format(const flash_config_t *config, char *text, size_t size) {
    flash_config_t own;
    text_writer_t w = {.length = 0};
    FLASH_TRY(config_read(&own, config));
    FLASH_TRY(write_config(&w, &own));
    return text_copy(&w, "the short form", text, size);
}
