/*
 * These tables have the facts about configurations that the generator knows (codegen/facts.py): the
 * fields in sort order, and for each kernel family and operation the short form of its rows, the
 * rules of their fields and their element types. config_facts.c holds the tables.
 */
#ifndef FLASH_CONFIG_FACTS_TYPES_H
#define FLASH_CONFIG_FACTS_TYPES_H

#include "config_facts.h"
#include "flashattn.h"
#include "kernels/common/dtype.h"

#include <stdbool.h>
#include <stddef.h>

/* A field is numbered by its position in the sort order. */
enum {
#define FIELD_INDEX(field) CONFIG_FIELD_##field,
    FLASH_CONFIG_FIELDS(FIELD_INDEX)
#undef FIELD_INDEX
        CONFIG_N_FIELDS
};

/* A family is numbered by its place in the list. */
enum {
#define FAMILY_INDEX(NAME, name) CONFIG_FAMILY_##NAME,
    FLASH_CONFIG_ARCHS(FAMILY_INDEX)
#undef FAMILY_INDEX
        CONFIG_N_FAMILIES
};

/* An operation is numbered by its FLASH_OP_.... */
enum {
#define OP_INDEX(name, word) CONFIG_OP_##name,
    FLASH_CONFIG_OPS(OP_INDEX)
#undef OP_INDEX
        CONFIG_N_OPS
};

/* The values that a field may have. A field that means nothing in such rows has RULE_ZERO. */
typedef struct config_rule {
    enum {
        RULE_ZERO,   /* 0 */
        RULE_CHOICE, /* one of n values */
        RULE_RANGE,  /* low ... high, a multiple of n */
        RULE_BITS    /* a set of the bits of high, with those of low */
    } kind;
    int32_t low;
    int32_t high;
    int32_t n;
    const int32_t *values;
} config_rule_t;

enum { CONFIG_WORD_FIELDS = 3 };

/* A word of the short form. A switch is on if its word is there. Counts are a word with the numbers
 * of some fields, which is always there. */
typedef struct config_word {
    const char *word;
    const char *suffix; /* stands after the numbers of counts; text to read may lack it */
    const char *form;   /* for messages, as "load_<Q>_<K>_<V>_tiles" */
    int32_t n_counts;   /* 0: the word is a switch */
    int32_t fields[CONFIG_WORD_FIELDS];
} config_word_t;

/* A switch that means nothing without another one. */
typedef struct config_need {
    int32_t field;
    int32_t needed;
} config_need_t;

/* The fields of the configurations of one kind of rows, and how they are written. */
typedef struct config_layout {
    bool any_d_head;   /* a d_head of 0, written "any", stands for every head dimension; without
                          it a kernel also serves smaller d_head than its own */
    bool has_d_head_v; /* a d_head_v other than 0 is written behind d_head, as "192/128" */
    bool has_operand_dtype; /* so is an operand_dtype behind dtype, as "E4M3/E4M3" */
    int32_t n_shape;        /* fields in the parentheses, after dtype and d_head */
    const int32_t *shape;
    int32_t n_words; /* words between the colon and the features */
    const config_word_t *words;
    int32_t n_needs;
    const config_need_t *needs;
    const char *words_text; /* for messages: what may follow the colon */
} config_layout_t;

/* Types of Q and O that go together. */
typedef struct type_pairs {
    uint32_t
        outputs[N_DTYPES + 1]; /* by the type of Q: a bit, 1 << FLASH_DTYPE_..., for each of O */
} type_pairs_t;

/* These are the types of problems that rows of a dtype and an operand_dtype serve. */
typedef struct row_types {
    int32_t dtype;
    int32_t operand_dtype;
    uint32_t v_types; /* of V beside K of dtype: a bit, 1 << FLASH_DTYPE_..., for each */
    type_pairs_t pairs;
} row_types_t;

/* These facts say what the rows of a family for one operation may be. */
typedef struct row_facts {
    const config_layout_t *layout;
    const config_rule_t *rules; /* [CONFIG_N_FIELDS] */
    int32_t n_types;
    const row_types_t *types; /* of all dtype and operand_dtype that a row may have */
} row_facts_t;

typedef struct family_facts {
    int32_t number; /* CONFIG_FAMILY_... */
    int32_t arch;
    const char *name;
    bool on_cpu;
    int32_t least_capability; /* compute capabilities of CUDA devices that run its rows */
    int32_t most_capability;
    const char *lack;                      /* what other devices lack, for messages */
    const row_facts_t *rows[CONFIG_N_OPS]; /* by FLASH_OP_...; NULL: no such rows */
} family_facts_t;

#define DECLARE_FAMILY_FACTS(NAME, name) extern const family_facts_t family_facts_##name;
FLASH_CONFIG_ARCHS(DECLARE_FAMILY_FACTS)
#undef DECLARE_FAMILY_FACTS

#define DECLARE_ROW_FACTS(name)                                                                    \
    extern const row_facts_t row_facts_##name;                                                     \
    extern const row_types_t row_types_##name[];
FLASH_CONFIG_ROWS(DECLARE_ROW_FACTS)
#undef DECLARE_ROW_FACTS

/* Returns the offset of a field in a configuration, where every member has 32 bits. */
static inline size_t config_field_offset(int32_t field) {
    return offsetof(flash_config_t, arch) + (size_t)field * sizeof(int32_t);
}

static inline int32_t config_field(const flash_config_t *config, int32_t field) {
    return *(const int32_t *)((const char *)config + config_field_offset(field));
}

static inline void config_set_field(flash_config_t *config, int32_t field, int32_t value) {
    *(int32_t *)((char *)config + config_field_offset(field)) = value;
}

const char *config_field_name(int32_t field);

/* Returns what the rows for an operation may be; NULL if the family has none. */
static inline const row_facts_t *family_rows(const family_facts_t *facts, int32_t op) {
    return op >= 0 && op < CONFIG_N_OPS ? facts->rows[op] : NULL;
}

#endif
