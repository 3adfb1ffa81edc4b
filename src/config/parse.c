/*
 * Reading the short form of a configuration, as config_format.c writes it, with blanks and in any
 * order of the words.
 */
#include "config/config.h"
#include "config_facts.h"
#include "core/status.h"
#include "core/text_reader.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

static bool take_char(text_reader_t *r, char c) {
    text_skip_blanks(r);
    if (*r->at != c)
        return false;
    r->at++;
    return true;
}

/* An int32 without blanks before it. */
static bool take_digits(text_reader_t *r, int32_t *value) {
    const char *digits = r->at + (*r->at == '-');
    if (!isdigit((unsigned char)*digits))
        return false;
    char *end;
    errno = 0;
    const long long n = strtoll(r->at, &end, 10);
    if (errno != 0 || n < INT32_MIN || n > INT32_MAX)
        return false;
    *value = (int32_t)n;
    r->at = end;
    return true;
}

static flash_status_t read_separator(text_reader_t *r) {
    return take_char(r, ',') ? FLASH_SUCCESS : text_expected(r, "','");
}

static flash_status_t read_number(text_reader_t *r, const char *what, int32_t *value) {
    text_skip_blanks(r);
    return take_digits(r, value) ? FLASH_SUCCESS : text_expected(r, what);
}

static flash_status_t read_arch(text_reader_t *r, flash_config_t *config) {
    text_skip_blanks(r);
#define READ_ARCH(name, layout)                                                                    \
    if (text_take_word(r, #name)) {                                                                \
        config->arch = FLASH_ARCH_##name;                                                          \
        return FLASH_SUCCESS;                                                                      \
    }
    FLASH_CONFIG_ARCHS(READ_ARCH)
#undef READ_ARCH
    if (*r->at != '(')
        return text_expected(r, "the name of a kernel family or '('");
    config->arch = FLASH_ARCH_SM80;
    return FLASH_SUCCESS;
}

static flash_status_t read_dtype(text_reader_t *r, flash_config_t *config) {
    text_skip_blanks(r);
    return text_read_dtype(r, &config->dtype);
}

static flash_status_t read_d_head(text_reader_t *r, flash_config_t *config) {
    text_skip_blanks(r);
    if (config_is_cpu(config) && text_take_word(r, "any"))
        return FLASH_SUCCESS;
    return read_number(r, "d_head", &config->d_head);
}

/* "(dtype, d_head, B_r, B_c[, n_warps])" */
static flash_status_t read_tuple(text_reader_t *r, flash_config_t *config) {
    if (!take_char(r, '('))
        return text_expected(r, "'('");
    FLASH_TRY(read_dtype(r, config));
    FLASH_TRY(read_separator(r));
    FLASH_TRY(read_d_head(r, config));
    FLASH_TRY(read_separator(r));
    FLASH_TRY(read_number(r, "B_r", &config->B_r));
    FLASH_TRY(read_separator(r));
    FLASH_TRY(read_number(r, "B_c", &config->B_c));
    if (!config_is_cpu(config)) {
        FLASH_TRY(read_separator(r));
        FLASH_TRY(read_number(r, "n_warps", &config->n_warps));
    }
    return take_char(r, ')') ? FLASH_SUCCESS : text_expected(r, "')'");
}

/* The words of a kind of family besides features; counts are the word that is always there. */
typedef struct layout {
    bool (*take_strategy)(text_reader_t *r, flash_config_t *config);
    bool (*take_counts)(text_reader_t *r, flash_config_t *config);
    const char *counts;   /* its form; NULL: none */
    const char *any_word; /* for messages */
} layout_t;

/* "load_<Q>_<K>_<V>" with or without "_tiles". */
static bool take_load(text_reader_t *r, flash_config_t *config) {
    text_reader_t ahead = *r;
    if (!text_take(&ahead, "load_") || !take_digits(&ahead, &config->Q_mma_load_K_fragments) ||
        !text_take(&ahead, "_") || !take_digits(&ahead, &config->K_mma_load_K_fragments) ||
        !text_take(&ahead, "_") || !take_digits(&ahead, &config->V_mma_load_K_fragments))
        return false;
    text_take(&ahead, "_tiles");
    if (text_is_word_char(*ahead.at))
        return false;
    *r = ahead;
    return true;
}

static bool take_sm80_strategy(text_reader_t *r, flash_config_t *config) {
#define READ_STRATEGY(field, word)                                                                 \
    if (!config->field && text_take_word(r, word)) {                                               \
        config->field = 1;                                                                         \
        return true;                                                                               \
    }
    FLASH_CONFIG_STRATEGIES(READ_STRATEGY)
    FLASH_CONFIG_STRATEGIES_AFTER_LOAD(READ_STRATEGY)
    return false;
}

/* "stages_<N>" */
static bool take_stages(text_reader_t *r, flash_config_t *config) {
    text_reader_t ahead = *r;
    if (!text_take(&ahead, "stages_") || !take_digits(&ahead, &config->n_stages) ||
        text_is_word_char(*ahead.at))
        return false;
    *r = ahead;
    return true;
}

static bool take_sm90_strategy(text_reader_t *r, flash_config_t *config) {
    FLASH_CONFIG_SM90_STRATEGIES(READ_STRATEGY)
#undef READ_STRATEGY
    return false;
}

static bool take_nothing(text_reader_t *r, flash_config_t *config) {
    (void)r;
    (void)config;
    return false;
}

static const layout_t layout_cpu = {take_nothing, take_nothing, NULL,
                                    "a feature (causal, window, softcap, varlen), each once"};
static const layout_t layout_sm80 = {take_sm80_strategy, take_load, "load_<Q>_<K>_<V>_tiles",
                                     "a strategy, load_<Q>_<K>_<V>_tiles or a feature, each once"};
static const layout_t layout_sm90 = {take_sm90_strategy, take_stages, "stages_<N>",
                                     "a strategy, stages_<N> or a feature, each once"};

static const layout_t *layout_of(const flash_config_t *config) {
    switch (config->arch) {
#define LAYOUT_OF(name, layout)                                                                    \
    case FLASH_ARCH_##name:                                                                        \
        return &layout_##layout;
        FLASH_CONFIG_ARCHS(LAYOUT_OF)
#undef LAYOUT_OF
    default: /* read_arch() knows no other */
        return &layout_cpu;
    }
}

/* One of the words after ':'; each at most once. */
static flash_status_t read_word(text_reader_t *r, const layout_t *layout, flash_config_t *config,
                                bool *has_counts) {
    text_skip_blanks(r);
    if (text_take_feature(r, &config->features) || layout->take_strategy(r, config))
        return FLASH_SUCCESS;
    if (!*has_counts && layout->take_counts(r, config)) {
        *has_counts = true;
        return FLASH_SUCCESS;
    }
    return text_expected(r, layout->any_word);
}

static flash_status_t read_words(text_reader_t *r, flash_config_t *config) {
    const layout_t *layout = layout_of(config);
    bool has_counts = layout->counts == NULL;
    if (take_char(r, ':')) {
        do {
            FLASH_TRY(read_word(r, layout, config, &has_counts));
        } while (take_char(r, '+'));
    }
    return has_counts ? FLASH_SUCCESS : text_expected(r, layout->counts);
}

static flash_status_t read_config(text_reader_t *r, flash_config_t *config) {
    FLASH_TRY(read_arch(r, config));
    FLASH_TRY(read_tuple(r, config));
    FLASH_TRY(read_words(r, config));
    text_skip_blanks(r);
    return *r->at == '\0' ? FLASH_SUCCESS : text_expected(r, "the end");
}

flash_status_t flash_config_parse(const char *text, flash_config_t *config) {
    flash_config_t own = FLASH_CONFIG_INIT;
    FLASH_REQUIRE(text != NULL, FLASH_ERROR_INVALID_ARGUMENT, "text is NULL");
    text_reader_t r = {.text = text, .at = text};
    FLASH_TRY(read_config(&r, &own));
    return config_write(&own, config);
}
