/*
 * Measured results: any text is read or refused with its line, and every result that was read is
 * written as a line that reads as the same result.
 */
#include "check.h"

#include "select/tuning/format.h"
#include "select/tuning/parse.h"

#include <string.h>

static void check_row(const tuning_row_t *row) {
    char text[sizeof FLASH_TUNING_HEADER + FLASH_TUNING_TEXT_SIZE] = FLASH_TUNING_HEADER "\n";
    tuning_results_t *again = NULL;
    CHECK(tuning_write(row, text + strlen(text), FLASH_TUNING_TEXT_SIZE) == FLASH_SUCCESS);
    CHECK(tuning_parse(text, false, &again) == FLASH_SUCCESS);
    CHECK(again->count == 1 && tuning_compare(&again->rows[0], row) == 0);
    free(again);
}

static void check_results(const tuning_results_t *results) {
    for (int32_t i = 0; i < results->count; i++) {
        CHECK(i == 0 || tuning_compare(&results->rows[i - 1], &results->rows[i]) <= 0);
        check_row(&results->rows[i]);
    }
}

static void read_text(const char *text) {
    tuning_results_t *results = NULL;
    if (tuning_parse(text, false, &results) == FLASH_SUCCESS)
        check_results(results);
    else
        CHECK(results == NULL && strncmp(flash_last_error(), "line ", 5) == 0);
    free(results);
}

/* The bytes between two texts; the memory ends where the text does: reading past it is seen. */
static void read_between(const char *before, const uint8_t *data, size_t size, const char *after) {
    const size_t begin = strlen(before), end = strlen(after);
    char *text = malloc(begin + size + end + 1);
    CHECK(text != NULL);
    memcpy(text, before, begin);
    memcpy(text + begin, data, size);
    memcpy(text + begin + size, after, end + 1);
    read_text(text);
    free(text);
}

/* Reads the bytes as they are, below a header, as the configuration of a result, and as its
 * problem, because a fuzzer would hardly find these parts together. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char header[] = FLASH_TUNING_HEADER "\n";
    static const char problem[] =
        FLASH_TUNING_HEADER "\ncc=90 sms=132 dtype=BF16 d_head=128 features=causal q=2048 k=2048 "
                            "heads=128 ns=155020: ";
    static const char config[] =
        ": REFERENCE (FP32, any, 16, 1): causal+window+softcap+varlen+paged+bias";
    read_between("", data, size, "");
    read_between(header, data, size, "");
    read_between(problem, data, size, "");
    read_between(header, data, size, config);
    return 0;
}
