/*
 * The emulated tile instructions are compared with their definition and with the processor's own.
 */
#include "processor.h"
#include "support.h"
#include "tiles.h"

#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* C [m][n] += A [m][k][2] * B [k][n][2], in tiles 0, 1 and 2. */
typedef struct shape {
    int m, n, k;
} shape_t;

typedef struct product {
    _Alignas(64) float c[16][16];
    uint16_t a[16][32];
    uint16_t b[16][32];
} product_t;

static const shape_t SHAPES[] = {{16, 16, 16}, {16, 1, 16}, {1, 16, 3}, {5, 7, 16}, {16, 9, 1}};

/* ---- Configurations ---- */

static void set_tile(emulated_tile_config_t *config, int tile, int rows, int columns) {
    config->rows[tile] = (uint8_t)rows;
    config->row_bytes[tile] = (uint16_t)(columns * 4);
}

static emulated_tile_config_t config_of(shape_t s) {
    emulated_tile_config_t config = {.palette = 1};
    set_tile(&config, 0, s.m, s.n);
    set_tile(&config, 1, s.m, s.k);
    set_tile(&config, 2, s.k, s.n);
    return config;
}

static void configure(shape_t s) {
    const emulated_tile_config_t config = config_of(s);
    emulated_tile_loadconfig(&config);
}

/* ---- Random operands ---- */

static uint32_t random_bits(uint32_t *state) { /* xorshift32 */
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

typedef enum values {
    NEAR_ONE,  /* sums cancel: every rounding shows */
    NEAR_TINY, /* products and sums about the smallest normal number */
    ANY        /* every pattern: subnormals, infinity, NaN */
} values_t;

/* Returns an fp32, whose upper half is a bf16. */
static uint32_t random_value(values_t values, uint32_t *state) {
    const uint32_t bits = random_bits(state);
    const uint32_t lowest = values == NEAR_ONE ? 124 : 60;
    if (values == ANY)
        return bits;
    return (bits & 0x807fffff) | (lowest + (random_bits(state) >> 8) % 8) << 23;
}

static product_t random_product(values_t values, uint32_t seed) {
    product_t p;
    uint32_t state = seed;
    for (int i = 0; i < 16 * 16; i++) {
        const uint32_t c = random_value(values, &state);
        p.c[i / 16][i % 16] = values == NEAR_TINY ? float_of(c) * 0x1p-63f : float_of(c);
    }
    for (int i = 0; i < 16 * 32; i++) {
        p.a[i / 32][i % 32] = (uint16_t)(random_value(values, &state) >> 16);
        p.b[i / 32][i % 32] = (uint16_t)(random_value(values, &state) >> 16);
    }
    return p;
}

/* ---- The definition (Intel SDM volume 2, TDPBF16PS) ---- */

/* Returns zero for a number below the smallest normal one. */
static double flush(double x) {
    return fabs(x) < FLT_MIN ? copysign(0, x) : x;
}

/* Returns a * b + c, rounded once, and flushed if subnormal when rounded to any exponent. */
static float multiply_add(float a, float b, float c) {
    const double x = flush(a), y = flush(b), z = flush(c);
    const double unrounded = fma(x, y, z);
    if (fabs(unrounded) < FLT_MIN * (1 - 0x1p-25))
        return (float)copysign(0, unrounded);
    return fmaf((float)x, (float)y, (float)z);
}

static float from_bf16(uint16_t x) {
    return float_of((uint32_t)x << 16);
}

static float defined_element(const product_t *p, shape_t s, int m, int n) {
    float even = 0, odd = 0;
    for (int k = 0; k < s.k; k++) {
        even = multiply_add(from_bf16(p->a[m][2 * k]), from_bf16(p->b[k][2 * n]), even);
        odd = multiply_add(from_bf16(p->a[m][2 * k + 1]), from_bf16(p->b[k][2 * n + 1]), odd);
    }
    return multiply_add(1, p->c[m][n], multiply_add(1, even, odd));
}

/* ---- Products ---- */

static void multiply_emulated(product_t *p, shape_t s) {
    configure(s);
    emulated_tile_loadd(0, p->c, sizeof p->c[0]);
    emulated_tile_loadd(1, p->a, sizeof p->a[0]);
    emulated_tile_loadd(2, p->b, sizeof p->b[0]);
    emulated_tile_dpbf16ps(0, 1, 2);
    emulated_tile_stored(0, p->c, sizeof p->c[0]);
    emulated_tile_release();
}

__attribute__((target("amx-tile,amx-bf16"), noinline)) static void
multiply_on_processor(product_t *p, shape_t s) {
    const emulated_tile_config_t config = config_of(s);
    __asm__ volatile("" ::: "memory"); /* operands must be in memory before tiles load them */
    _tile_loadconfig(&config);
    _tile_loadd(0, p->c, sizeof p->c[0]);
    _tile_loadd(1, p->a, sizeof p->a[0]);
    _tile_loadd(2, p->b, sizeof p->b[0]);
    _tile_dpbf16ps(0, 1, 2);
    _tile_stored(0, p->c, sizeof p->c[0]);
    _tile_release();
    __asm__ volatile("" ::: "memory");
}

static void check_element(float computed, float expected, int m, int n) {
    if (memcmp(&computed, &expected, sizeof computed) != 0 && !(isnan(computed) && isnan(expected)))
        fail_msg("C[%d][%d] is %a, not %a", m, n, (double)computed, (double)expected);
}

static void check_against_definition(const product_t *p, shape_t s) {
    product_t computed = *p;
    multiply_emulated(&computed, s);
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++)
            check_element(computed.c[m][n],
                          m < s.m && n < s.n ? defined_element(p, s, m, n) : p->c[m][n], m, n);
}

static void check_against_processor(const product_t *p, shape_t s) {
    product_t computed = *p, expected = *p;
    multiply_emulated(&computed, s);
    multiply_on_processor(&expected, s);
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++)
            check_element(computed.c[m][n], expected.c[m][n], m, n);
}

static void for_random_products(void (*check)(const product_t *p, shape_t s)) {
    for (values_t values = NEAR_ONE; values <= ANY; values++)
        for (size_t i = 0; i < sizeof SHAPES / sizeof SHAPES[0]; i++)
            for (uint32_t seed = 1; seed <= 20; seed++) {
                const product_t p = random_product(values, seed);
                check(&p, SHAPES[i]);
            }
}

TEST(products_are_as_defined) {
    for_random_products(check_against_definition);
}

TEST(products_are_the_processors) {
    if (!processor_has_amx())
        skip();
    for_random_products(check_against_processor);
}

/* A product depends neither on the thread's rounding nor on its flags, and changes neither. */
TEST(products_leave_mxcsr_alone) {
    const unsigned control = _mm_getcsr();
    const product_t p = random_product(NEAR_TINY, 1);
    product_t nearest = p, upward = p;
    multiply_emulated(&nearest, SHAPES[0]);
    _mm_setcsr((control & ~(unsigned)_MM_EXCEPT_MASK) | _MM_ROUND_UP);
    multiply_emulated(&upward, SHAPES[0]);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(control);
    assert_int_equal(after, (control & ~(unsigned)_MM_EXCEPT_MASK) | _MM_ROUND_UP);
    assert_memory_equal(nearest.c, upward.c, sizeof nearest.c);
}

/* ---- Registers and memory ---- */

enum { STRIDE = 100 };

/* Says whether tile 0 holds rows of this byte, and zeros beyond them. */
static bool tile_holds(shape_t s, uint8_t byte) {
    uint8_t bytes[16 * STRIDE];
    memset(bytes, 0x55, sizeof bytes);
    emulated_tile_stored(0, bytes, STRIDE);
    for (int i = 0; i < 16 * STRIDE; i++) {
        const bool inside = i / STRIDE < s.m && i % STRIDE < s.n * 4;
        if (bytes[i] != (inside ? byte : 0x55))
            return false;
    }
    return true;
}

static void load_byte(uint8_t byte) {
    uint8_t bytes[16][64];
    memset(bytes, byte, sizeof bytes);
    emulated_tile_loadd(0, bytes, sizeof bytes[0]);
}

TEST(tiles_are_loaded_stored_and_cleared) {
    for (size_t i = 0; i < sizeof SHAPES / sizeof SHAPES[0]; i++) {
        configure(SHAPES[i]);
        assert_true(tile_holds(SHAPES[i], 0));
        load_byte(7);
        assert_true(tile_holds(SHAPES[i], 7));
        emulated_tile_zero(0);
        assert_true(tile_holds(SHAPES[i], 0));
        load_byte(7);
        configure(SHAPES[i]);
        assert_true(tile_holds(SHAPES[i], 0));
    }
    emulated_tile_release();
}

static void *use_tiles(void *argument) {
    (void)argument;
    configure(SHAPES[3]);
    load_byte(9);
    emulated_tile_release();
    return NULL;
}

TEST(threads_have_tiles_of_their_own) {
    pthread_t thread;
    configure(SHAPES[0]);
    load_byte(7);
    assert_int_equal(pthread_create(&thread, NULL, use_tiles, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(tile_holds(SHAPES[0], 7));
    emulated_tile_release();
}

/* ---- Misuse ---- */

static void use_before_configuration(void) {
    emulated_tile_zero(0);
}

static void use_after_release(void) {
    configure(SHAPES[0]);
    emulated_tile_release();
    load_byte(1);
}

static void use_a_tile_without_rows(void) {
    configure(SHAPES[0]);
    emulated_tile_zero(3);
}

static void multiply_a_tile_by_itself(void) {
    configure(SHAPES[0]);
    emulated_tile_dpbf16ps(0, 1, 1);
}

static void multiply_what_does_not_fit(void) {
    configure(SHAPES[3]);
    emulated_tile_dpbf16ps(0, 2, 1);
}

static void configure_too_many_rows(void) {
    const shape_t too_many = {17, 16, 16};
    configure(too_many);
}

static void configure_reserved_bytes(void) {
    emulated_tile_config_t config = config_of(SHAPES[0]);
    config.reserved[3] = 1;
    emulated_tile_loadconfig(&config);
}

static void check_aborts(void (*misuse)(void)) {
    int status = 0;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        fclose(stderr);
        misuse();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

TEST(misuse_ends_the_program) {
    check_aborts(use_before_configuration);
    check_aborts(use_after_release);
    check_aborts(use_a_tile_without_rows);
    check_aborts(multiply_a_tile_by_itself);
    check_aborts(multiply_what_does_not_fit);
    check_aborts(configure_too_many_rows);
    check_aborts(configure_reserved_bytes);
}
