/*
 * Enumerators have words that occur in several kinds of text: in the short form of a configuration,
 * and in measured results.
 */
#ifndef FLASH_CONFIG_WORDS_H
#define FLASH_CONFIG_WORDS_H

#include "core/text_reader.h"
#include "core/text_writer.h"
#include "flashattn.h"

/* These return the word of a FLASH_DTYPE_... or a FLASH_OP_...; NULL if there is none. */
const char *words_dtype(int32_t dtype);
const char *words_op(int32_t op);

/* Returns all FLASH_FEATURE_... bits that have a word. */
int32_t words_features(void);

/* Writes the words of FLASH_FEATURE_... bits. */
void words_put_features(text_writer_t *w, int32_t features);

enum { WORDS_FEATURES_SIZE = 64 };

/* Writes FLASH_FEATURE_... bits for a message: "causal+varlen", or "none". */
void words_name_features(int32_t features, char text[WORDS_FEATURES_SIZE]);

/* Takes the word of a type. Returns INVALID_ARGUMENT with the position if there is none. */
flash_status_t words_read_dtype(text_reader_t *r, int32_t *dtype);

/* Takes the word of an operation, if one comes next. */
bool words_take_op(text_reader_t *r, int32_t *op);

/* Takes the word of a feature that the set does not have yet, and adds it. */
bool words_take_feature(text_reader_t *r, int32_t *features);

#endif
