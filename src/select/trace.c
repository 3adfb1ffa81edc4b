/*
 * The trace prints each distinct choice of a kernel once.
 */
#include "select/trace.h"

#include "config/config.h"
#include "config/kernel_table.h"
#include "config/words.h"
#include "config_facts.h"
#include "core/environment.h"
#include "core/status.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* ---- FLASHATTN_TRACE ---- */

static environment_variable_t variable = ENVIRONMENT_VARIABLE_INIT;
static bool is_on;

static flash_status_t parse(const char *value) {
    FLASH_REQUIRE(strcmp(value, "0") == 0 || strcmp(value, "1") == 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "FLASHATTN_TRACE is \"%.64s\": not 0 or 1", value);
    is_on = *value == '1';
    return FLASH_SUCCESS;
}

static void read_variable(void) {
    environment_parse(&variable, "FLASHATTN_TRACE", parse);
}

flash_status_t trace_is_on(bool *on) {
    FLASH_TRY(environment_read(&variable, read_variable));
    *on = is_on;
    return FLASH_SUCCESS;
}

/* ---- Choices ---- */

/* A problem's features, as a number, are below FEATURE_SETS. */
enum {
#define ADD_FEATURE(name, word) | FLASH_FEATURE_##name
    ALL_FEATURES = 0 FLASH_CONFIG_FEATURES(ADD_FEATURE),
#undef ADD_FEATURE
    FEATURE_SETS = ALL_FEATURES + 1
};

/* printed has a bit per kernel and set of features: that choice was printed. */
enum { TRACED_KERNELS = 4096, WORD_BITS = 32, WORDS = (FEATURE_SETS + WORD_BITS - 1) / WORD_BITS };
static atomic_uint printed[TRACED_KERNELS][WORDS];

/* Marks the choice as printed, and says whether it was not printed before. */
static bool is_new(const flash_kernel_t *kernel, const problem_t *problem) {
    const ptrdiff_t row = kernel - kernel_table;
    if (row >= TRACED_KERNELS)
        return true;
    atomic_uint *word = &printed[row][problem->features / WORD_BITS];
    const unsigned bit = 1u << (problem->features % WORD_BITS);
    return (atomic_fetch_or(word, bit) & bit) == 0;
}

void trace_choice(const flash_kernel_t *kernel, const problem_t *problem, const char *reason) {
    if (!is_new(kernel, problem))
        return;
    char text[FLASH_CONFIG_TEXT_SIZE], features[WORDS_FEATURES_SIZE];
    flash_config_format(&kernel->config, text, sizeof text);
    words_name_features(problem->features, features);
    const int errno_before = errno; /* standard error may be closed */
    fprintf(stderr, "flashattn: %s for a problem with features %s: %s\n", text, features, reason);
    errno = errno_before;
}
