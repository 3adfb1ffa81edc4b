/*
 * Division by a multiplication and a shift.
 */
#include "kernels/common/divide.h"
#include "support.h"

enum { SMALL_DIVISORS = 4096, RANDOM_DIVISORS = 200000 };

static void check_quotient(int64_t n, int32_t d) {
    if (n < 0 || n > INT32_MAX)
        return;
    const int32_t quotient = flash_divide((int32_t)n, flash_divider(d));
    if (quotient != n / d)
        fail_msg("%lld / %d gives %d", (long long)n, d, quotient);
}

/* Checks the first and the last numbers, and those beside multiples of d. */
static void check_divisor(int32_t d, uint32_t random) {
    const int64_t last = INT32_MAX / d;
    const int64_t quotients[] = {0, 1, 2, last / 2, random % (last + 1), last};
    for (size_t i = 0; i < sizeof quotients / sizeof quotients[0]; i++)
        for (int64_t beside = -1; beside <= 1; beside++)
            check_quotient(quotients[i] * d + beside, d);
    check_quotient(INT32_MAX - 1, d);
    check_quotient(INT32_MAX, d);
    check_quotient(random >> 1, d);
}

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}

TEST(small_divisors) {
    uint64_t random = 1;
    for (int32_t d = 1; d <= SMALL_DIVISORS; d++)
        check_divisor(d, next_random(&random));
}

TEST(powers_of_two_and_their_neighbours) {
    uint64_t random = 2;
    for (int bit = 1; bit <= 30; bit++)
        for (int32_t beside = -1; beside <= 1; beside++)
            check_divisor((1 << bit) + beside, next_random(&random));
    check_divisor(INT32_MAX - 1, next_random(&random));
    check_divisor(INT32_MAX, next_random(&random));
}

/* Divisors have every magnitude. */
TEST(random_divisors) {
    uint64_t random = 3;
    for (int i = 0; i < RANDOM_DIVISORS; i++) {
        const int32_t d = (int32_t)(next_random(&random) >> (1 + i % 31));
        check_divisor(d > 0 ? d : 1, next_random(&random));
    }
}
