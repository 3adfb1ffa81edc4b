/*
 * The short form of a configuration: writing and reading it.
 *
 *   (FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+buffer+opt_softmax+causal
 *   SM90 (BF16, 128, 128, 176, 12): stages_2+overlap+ping_pong+persistent+fixed_reference
 *   AVX512 (BF16, any, 64, 128): causal+window+softcap+varlen
 *
 * The words come from the generator's one list (config_facts.h).
 */
#include "config.h"
#include "config_facts.h"
#include "status.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Writing ---- */

typedef struct writer {
    char text[FLASH_CONFIG_TEXT_SIZE];
    size_t length;
    const char *separator; /* before the next feature */
} writer_t;

__attribute__((format(printf, 2, 3))) static void put(writer_t *w, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int n = vsnprintf(w->text + w->length, sizeof w->text - w->length, format, arguments);
    va_end(arguments);
    w->length += (size_t)n;
}

static void put_word(writer_t *w, const char *word) {
    put(w, "%s%s", w->separator, word);
    w->separator = "+";
}

static void put_features(writer_t *w, const flash_config_t *config) {
#define PUT_FEATURE(name, word)                                                                    \
    if (config->features & FLASH_FEATURE_##name)                                                   \
        put_word(w, word);
    FLASH_CONFIG_FEATURES(PUT_FEATURE)
#undef PUT_FEATURE
}

static void put_cpu(writer_t *w, const flash_config_t *config) {
    put(w, "%s (%s, ", config_arch_name(config->arch), config_dtype_name(config->dtype));
    if (config->d_head == 0)
        put(w, "any");
    else
        put(w, "%" PRId32, config->d_head);
    put(w, ", %" PRId32 ", %" PRId32 ")", config->B_r, config->B_c);
    put_features(w, config);
}

static void put_cuda_tuple(writer_t *w, const flash_config_t *config) {
    put(w, "(%s, %" PRId32 ", %" PRId32 ", %" PRId32 ", %" PRId32 ")",
        config_dtype_name(config->dtype), config->d_head, config->B_r, config->B_c,
        config->n_warps);
}

static void put_sm80(writer_t *w, const flash_config_t *config) {
    put_cuda_tuple(w, config);
#define PUT_STRATEGY(field, word)                                                                  \
    if (config->field)                                                                             \
        put_word(w, word);
    FLASH_CONFIG_STRATEGIES(PUT_STRATEGY)
    put_word(w, "load");
    put(w, "_%" PRId32 "_%" PRId32 "_%" PRId32 "_tiles", config->Q_mma_load_K_fragments,
        config->K_mma_load_K_fragments, config->V_mma_load_K_fragments);
    FLASH_CONFIG_STRATEGIES_AFTER_LOAD(PUT_STRATEGY)
    put_features(w, config);
}

static void put_sm90(writer_t *w, const flash_config_t *config) {
    put(w, "%s ", config_arch_name(config->arch));
    put_cuda_tuple(w, config);
    put_word(w, "stages");
    put(w, "_%" PRId32, config->n_stages);
    FLASH_CONFIG_SM90_STRATEGIES(PUT_STRATEGY)
#undef PUT_STRATEGY
    put_features(w, config);
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

static flash_status_t write_config(writer_t *w, const flash_config_t *config) {
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
    writer_t w = {.length = 0};
    FLASH_REQUIRE(text != NULL, FLASH_ERROR_INVALID_ARGUMENT, "text is NULL");
    FLASH_TRY(config_read(&own, config));
    FLASH_TRY(write_config(&w, &own));
    FLASH_REQUIRE(w.length < size, FLASH_ERROR_BUFFER_TOO_SMALL,
                  "the short form takes %zu bytes, the buffer has %zu", w.length + 1, size);
    memcpy(text, w.text, w.length + 1);
    return FLASH_SUCCESS;
}

/* ---- Reading ---- */

typedef struct reader {
    const char *text;
    const char *at;
} reader_t;

static flash_status_t expected(const reader_t *r, const char *what) {
    return status_fail(FLASH_ERROR_INVALID_ARGUMENT, "expected %s at position %td of \"%.200s\"",
                       what, r->at - r->text, r->text);
}

static void skip_blanks(reader_t *r) {
    while (*r->at == ' ' || *r->at == '\t')
        r->at++;
}

static bool take_char(reader_t *r, char c) {
    skip_blanks(r);
    if (*r->at != c)
        return false;
    r->at++;
    return true;
}

static bool is_word_char(char c) {
    return isalnum((unsigned char)c) || c == '_';
}

static bool take_word(reader_t *r, const char *word) {
    skip_blanks(r);
    const size_t length = strlen(word);
    if (strncmp(r->at, word, length) != 0 || is_word_char(r->at[length]))
        return false;
    r->at += length;
    return true;
}

/* An int32 without blanks before it. */
static bool take_digits(reader_t *r, int32_t *value) {
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

static flash_status_t read_separator(reader_t *r) {
    return take_char(r, ',') ? FLASH_SUCCESS : expected(r, "','");
}

static flash_status_t read_number(reader_t *r, const char *what, int32_t *value) {
    skip_blanks(r);
    return take_digits(r, value) ? FLASH_SUCCESS : expected(r, what);
}

static flash_status_t read_arch(reader_t *r, flash_config_t *config) {
#define READ_ARCH(name, layout)                                                                    \
    if (take_word(r, #name)) {                                                                     \
        config->arch = FLASH_ARCH_##name;                                                          \
        return FLASH_SUCCESS;                                                                      \
    }
    FLASH_CONFIG_ARCHS(READ_ARCH)
#undef READ_ARCH
    skip_blanks(r);
    if (*r->at != '(')
        return expected(r, "the name of a kernel family or '('");
    config->arch = FLASH_ARCH_SM80;
    return FLASH_SUCCESS;
}

static flash_status_t read_dtype(reader_t *r, flash_config_t *config) {
#define READ_DTYPE(name)                                                                           \
    if (take_word(r, #name)) {                                                                     \
        config->dtype = FLASH_DTYPE_##name;                                                        \
        return FLASH_SUCCESS;                                                                      \
    }
    FLASH_CONFIG_DTYPES(READ_DTYPE)
#undef READ_DTYPE
    return expected(r, "an element type (FP16, BF16, FP32)");
}

static flash_status_t read_d_head(reader_t *r, flash_config_t *config) {
    if (config_is_cpu(config) && take_word(r, "any"))
        return FLASH_SUCCESS;
    return read_number(r, "d_head", &config->d_head);
}

/* "(dtype, d_head, B_r, B_c[, n_warps])" */
static flash_status_t read_tuple(reader_t *r, flash_config_t *config) {
    if (!take_char(r, '('))
        return expected(r, "'('");
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
    return take_char(r, ')') ? FLASH_SUCCESS : expected(r, "')'");
}

/* The words of a kind of family besides features. */
typedef struct layout {
    bool (*take_strategy)(reader_t *r, flash_config_t *config);
    bool (*take_counts)(reader_t *r, flash_config_t *config); /* the word that is always there */
    const char *counts;                                       /* its form; NULL: none */
    const char *any_word;                                     /* for messages */
} layout_t;

/* "load_<Q>_<K>_<V>" with or without "_tiles". */
static bool take_load(reader_t *r, flash_config_t *config) {
    reader_t ahead = *r;
    if (strncmp(ahead.at, "load_", 5) != 0)
        return false;
    ahead.at += 5;
    if (!take_digits(&ahead, &config->Q_mma_load_K_fragments) || *ahead.at++ != '_' ||
        !take_digits(&ahead, &config->K_mma_load_K_fragments) || *ahead.at++ != '_' ||
        !take_digits(&ahead, &config->V_mma_load_K_fragments))
        return false;
    if (strncmp(ahead.at, "_tiles", 6) == 0)
        ahead.at += 6;
    if (is_word_char(*ahead.at))
        return false;
    *r = ahead;
    return true;
}

static bool take_sm80_strategy(reader_t *r, flash_config_t *config) {
#define READ_STRATEGY(field, word)                                                                 \
    if (!config->field && take_word(r, word)) {                                                    \
        config->field = 1;                                                                         \
        return true;                                                                               \
    }
    FLASH_CONFIG_STRATEGIES(READ_STRATEGY)
    FLASH_CONFIG_STRATEGIES_AFTER_LOAD(READ_STRATEGY)
    return false;
}

/* "stages_<N>" */
static bool take_stages(reader_t *r, flash_config_t *config) {
    reader_t ahead = *r;
    if (strncmp(ahead.at, "stages_", 7) != 0)
        return false;
    ahead.at += 7;
    if (!take_digits(&ahead, &config->n_stages) || is_word_char(*ahead.at))
        return false;
    *r = ahead;
    return true;
}

static bool take_sm90_strategy(reader_t *r, flash_config_t *config) {
    FLASH_CONFIG_SM90_STRATEGIES(READ_STRATEGY)
#undef READ_STRATEGY
    return false;
}

static bool take_nothing(reader_t *r, flash_config_t *config) {
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

static bool take_feature(reader_t *r, flash_config_t *config) {
#define READ_FEATURE(name, word)                                                                   \
    if (!(config->features & FLASH_FEATURE_##name) && take_word(r, word)) {                        \
        config->features |= FLASH_FEATURE_##name;                                                  \
        return true;                                                                               \
    }
    FLASH_CONFIG_FEATURES(READ_FEATURE)
#undef READ_FEATURE
    return false;
}

/* One of the words after ':'; each at most once. */
static flash_status_t read_word(reader_t *r, const layout_t *layout, flash_config_t *config,
                                bool *has_counts) {
    skip_blanks(r);
    if (take_feature(r, config) || layout->take_strategy(r, config))
        return FLASH_SUCCESS;
    if (!*has_counts && layout->take_counts(r, config)) {
        *has_counts = true;
        return FLASH_SUCCESS;
    }
    return expected(r, layout->any_word);
}

static flash_status_t read_words(reader_t *r, flash_config_t *config) {
    const layout_t *layout = layout_of(config);
    bool has_counts = layout->counts == NULL;
    if (take_char(r, ':')) {
        do {
            FLASH_TRY(read_word(r, layout, config, &has_counts));
        } while (take_char(r, '+'));
    }
    return has_counts ? FLASH_SUCCESS : expected(r, layout->counts);
}

static flash_status_t read_config(reader_t *r, flash_config_t *config) {
    FLASH_TRY(read_arch(r, config));
    FLASH_TRY(read_tuple(r, config));
    FLASH_TRY(read_words(r, config));
    skip_blanks(r);
    return *r->at == '\0' ? FLASH_SUCCESS : expected(r, "the end");
}

flash_status_t flash_config_parse(const char *text, flash_config_t *config) {
    flash_config_t own = FLASH_CONFIG_INIT;
    FLASH_REQUIRE(text != NULL, FLASH_ERROR_INVALID_ARGUMENT, "text is NULL");
    reader_t r = {text, text};
    FLASH_TRY(read_config(&r, &own));
    return config_write(&own, config);
}
