/*
 * The words come from the generator's list (config_facts.h).
 */
#include "config/words.h"

#include "config_facts.h"

#include <stddef.h>
#include <stdio.h>

const char *words_dtype(int32_t dtype) {
    switch (dtype) {
#define DTYPE_WORD(name)                                                                           \
    case FLASH_DTYPE_##name:                                                                       \
        return #name;
        FLASH_CONFIG_DTYPES(DTYPE_WORD)
#undef DTYPE_WORD
    default:
        return NULL;
    }
}

const char *words_op(int32_t op) {
    switch (op) {
#define OP_WORD(name, word)                                                                        \
    case FLASH_OP_##name:                                                                          \
        return word;
        FLASH_CONFIG_OPS(OP_WORD)
#undef OP_WORD
    default:
        return NULL;
    }
}

int32_t words_features(void) {
    int32_t features = 0;
#define ADD_FEATURE(name, word) features |= FLASH_FEATURE_##name;
    FLASH_CONFIG_FEATURES(ADD_FEATURE)
#undef ADD_FEATURE
    return features;
}

void words_put_features(text_writer_t *w, int32_t features) {
#define PUT_FEATURE(name, word)                                                                    \
    if (features & FLASH_FEATURE_##name)                                                           \
        text_put_word(w, word);
    FLASH_CONFIG_FEATURES(PUT_FEATURE)
#undef PUT_FEATURE
}

void words_name_features(int32_t features, char text[WORDS_FEATURES_SIZE]) {
    text_writer_t w = {.separator = ""};
    words_put_features(&w, features);
    snprintf(text, WORDS_FEATURES_SIZE, "%.*s", WORDS_FEATURES_SIZE - 1,
             w.length > 0 ? w.text : "none");
}

flash_status_t words_read_dtype(text_reader_t *r, int32_t *dtype) {
#define READ_DTYPE(name)                                                                           \
    if (text_take_word(r, #name)) {                                                                \
        *dtype = FLASH_DTYPE_##name;                                                               \
        return FLASH_SUCCESS;                                                                      \
    }
    FLASH_CONFIG_DTYPES(READ_DTYPE)
#undef READ_DTYPE
    return text_expected(r, "an element type (" FLASH_CONFIG_DTYPE_WORDS ")");
}

bool words_take_op(text_reader_t *r, int32_t *op) {
#define TAKE_OP(name, word)                                                                        \
    if (text_take_word(r, word)) {                                                                 \
        *op = FLASH_OP_##name;                                                                     \
        return true;                                                                               \
    }
    FLASH_CONFIG_OPS(TAKE_OP)
#undef TAKE_OP
    return false;
}

bool words_take_feature(text_reader_t *r, int32_t *features) {
#define TAKE_FEATURE(name, word)                                                                   \
    if (!(*features & FLASH_FEATURE_##name) && text_take_word(r, word)) {                          \
        *features |= FLASH_FEATURE_##name;                                                         \
        return true;                                                                               \
    }
    FLASH_CONFIG_FEATURES(TAKE_FEATURE)
#undef TAKE_FEATURE
    return false;
}
