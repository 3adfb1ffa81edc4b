/*
 * What the generator knows of configurations (codegen/facts.py), as tables: the fields in sort
 * order, and for each kernel family its short form, the rules of its fields, its features and its
 * element types.
 * config_facts.c holds the tables.
 */
#ifndef FLASH_CONFIG_FACTS_TYPES_H
#define FLASH_CONFIG_FACTS_TYPES_H

#include "config_facts.h"
#include "flashattn.h"

#include <stdbool.h>
#include <stddef.h>

/* A field by its place in the sort order. */
enum {
#define FIELD_INDEX(field) CONFIG_FIELD_##field,
    FLASH_CONFIG_FIELDS(FIELD_INDEX)
#undef FIELD_INDEX
        CONFIG_N_FIELDS
};

/* What a field may be. A rule of zeros stands for a field that means nothing to the family. */
typedef struct config_rule {
    enum {
        RULE_ZERO,   /* 0 */
        RULE_CHOICE, /* one of n values */
        RULE_RANGE,  /* low ... high, a multiple of n */
        RULE_BITS    /* a set of the bits of high */
    } kind;
    int32_t low;
    int32_t high;
    int32_t n;
    const int32_t *values;
} config_rule_t;

enum { CONFIG_WORD_FIELDS = 3 };

/* A word of the short form: a switch, which is on where the word stands, or counts, a word with the
 * numbers of some fields, which is always there. */
typedef struct config_word {
    const char *word;
    const char *suffix; /* counts: written behind the numbers; a reader may leave it out */
    const char *form;   /* for messages, as "load_<Q>_<K>_<V>_tiles" */
    int32_t n_counts;   /* 0: a switch */
    int32_t fields[CONFIG_WORD_FIELDS];
} config_word_t;

/* A switch that means nothing without another one. */
typedef struct config_need {
    int32_t field;
    int32_t needed;
} config_need_t;

/* What the configurations of a kind of family have, and how they are written. */
typedef struct config_layout {
    bool on_cpu;
    bool any_d_head; /* a d_head of 0, written "any", stands for every head dimension; otherwise a
                        kernel serves smaller ones than its own, too */
    int32_t n_shape; /* fields in the parentheses, after dtype and d_head */
    const int32_t *shape;
    int32_t n_words; /* after the colon, before the features */
    const config_word_t *words;
    int32_t n_needs;
    const config_need_t *needs;
    const char *words_text; /* for messages: what may stand after the colon */
} config_layout_t;

/* Element types of a problem that kernels serve together: of K and V, which is the configuration's,
 * of Q, and of O. */
typedef struct family_types {
    int32_t kv;
    int32_t q;
    int32_t o;
} family_types_t;

typedef struct family_facts {
    int32_t arch;
    const char *name;
    const config_layout_t *layout;
    int32_t features;           /* that its rows may cover */
    const config_rule_t *rules; /* [CONFIG_N_FIELDS] */
    int32_t n_types;
    const family_types_t *types;
} family_facts_t;

#define DECLARE_FACTS(NAME, name) extern const family_facts_t family_facts_##name;
FLASH_CONFIG_ARCHS(DECLARE_FACTS)
#undef DECLARE_FACTS

/* Returns the place of a field in a configuration, in which every member is 32 bits wide. */
static inline size_t config_field_offset(int32_t field) {
    return offsetof(flash_config_t, arch) + (size_t)field * sizeof(int32_t);
}

static inline int32_t config_field(const flash_config_t *config, int32_t field) {
    return *(const int32_t *)((const char *)config + config_field_offset(field));
}

static inline void config_set_field(flash_config_t *config, int32_t field, int32_t value) {
    *(int32_t *)((char *)config + config_field_offset(field)) = value;
}

/* Returns the name of a field. */
const char *config_field_name(int32_t field);

#endif
