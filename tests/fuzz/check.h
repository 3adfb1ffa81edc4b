/*
 * Assertions of fuzz targets hold in every build, and print where they fail.
 */
#ifndef FLASH_TESTS_FUZZ_CHECK_H
#define FLASH_TESTS_FUZZ_CHECK_H

#include "flashattn.h"

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: failed: %s; the last error is \"%s\"\n", __FILE__, __LINE__,   \
                    #condition, flash_last_error());                                               \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
