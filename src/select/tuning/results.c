/*
 * Measured results are plain data. This file has their order and the classes of sizes.
 */
#include "select/tuning/results.h"

#include <math.h>

int tuning_compare_keys(const tuning_key_t *a, const tuning_key_t *b) {
    for (int i = 0; i < TUNING_N_FIELDS; i++)
        if (a->fields[i] != b->fields[i])
            return a->fields[i] < b->fields[i] ? -1 : 1;
    return 0;
}

int tuning_compare(const tuning_row_t *a, const tuning_row_t *b) {
    const int keys = tuning_compare_keys(&a->key, &b->key);
    if (keys != 0)
        return keys;
    if (a->nanoseconds != b->nanoseconds)
        return a->nanoseconds < b->nanoseconds ? -1 : 1;
    return (a->kernel > b->kernel) - (a->kernel < b->kernel);
}

int32_t tuning_size_class(int64_t size) {
    static const double SQRT_HALF = 0.70710678118654752;
    int exponent;
    if (size < 2)
        return 0;
    const double mantissa = frexp((double)size, &exponent); /* in [0.5, 1) */
    return mantissa > SQRT_HALF ? exponent : exponent - 1;
}
