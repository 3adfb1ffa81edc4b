#include "tiles.h"

#include <immintrin.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The limits of palette 1. */
enum { N_TILES = 8, ROWS_MAX = 16, ROW_BYTES_MAX = 64 };

/* A tile has zeros beyond its rows, and beyond row_bytes of each row. */
typedef struct tile {
    _Alignas(64) uint8_t data[ROWS_MAX][ROW_BYTES_MAX];
    int rows;
    int row_bytes;
} tile_t;

static _Thread_local tile_t tiles[N_TILES];
static _Thread_local bool configured;

static void require(bool condition, const char *rule) {
    if (condition)
        return;
    fprintf(stderr, "emulated tiles: not so: %s\n", rule);
    abort();
}

/* ---- Configuration ---- */

static bool all_zeros(const void *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (((const uint8_t *)bytes)[i] != 0)
            return false;
    return true;
}

/* Checks what LDTILECFG answers with #GP. */
static void check_config(const emulated_tile_config_t *config) {
    require(config->palette <= 1, "the palette is 0 or 1");
    require(config->start_row == 0, "a kernel begins at row 0");
    require(all_zeros(config->reserved, sizeof config->reserved) &&
                all_zeros(config->row_bytes + N_TILES, N_TILES * sizeof *config->row_bytes) &&
                all_zeros(config->rows + N_TILES, N_TILES),
            "reserved bytes are zero");
    for (int i = 0; i < N_TILES; i++)
        require(config->row_bytes[i] <= ROW_BYTES_MAX && config->rows[i] <= ROWS_MAX &&
                    (config->row_bytes[i] == 0) == (config->rows[i] == 0),
                "a tile has at most 16 rows of 64 bytes, or is not there");
}

void emulated_tile_release(void) {
    memset(tiles, 0, sizeof tiles);
    configured = false;
}

void emulated_tile_loadconfig(const void *from) {
    emulated_tile_config_t config;
    memcpy(&config, from, sizeof config);
    check_config(&config);
    emulated_tile_release();
    configured = config.palette == 1;
    for (int i = 0; configured && i < N_TILES; i++) {
        tiles[i].rows = config.rows[i];
        tiles[i].row_bytes = config.row_bytes[i];
    }
}

static tile_t *tile_at(int number) {
    require(configured, "tiles are configured");
    require(0 <= number && number < N_TILES, "there are tiles 0 to 7");
    require(tiles[number].rows != 0, "the tile is configured");
    return &tiles[number];
}

/* ---- Memory ---- */

void emulated_tile_zero(int number) {
    tile_t *tile = tile_at(number);
    memset(tile->data, 0, sizeof tile->data);
}

void emulated_tile_loadd(int number, const void *from, ptrdiff_t stride) {
    tile_t *tile = tile_at(number);
    for (int row = 0; row < tile->rows; row++)
        memcpy(tile->data[row], (const char *)from + row * stride, (size_t)tile->row_bytes);
}

void emulated_tile_stored(int number, void *to, ptrdiff_t stride) {
    const tile_t *tile = tile_at(number);
    for (int row = 0; row < tile->rows; row++)
        memcpy((char *)to + row * stride, tile->data[row], (size_t)tile->row_bytes);
}

/* ---- The product ---- */

/* The product's own MXCSR, whatever the thread's is: no exceptions, rounding to nearest even, and
 * subnormal operands and results are zeros. */
enum { PRODUCT_CONTROL = _MM_MASK_MASK | _MM_ROUND_NEAREST | _MM_FLUSH_ZERO_ON | 0x40 };

/* Returns the even elements of 16 pairs of bf16, in fp32. */
static __m512 evens(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}

static __m512 odds(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
}

static __m512i pair_of_left(const tile_t *left, int row, int k) {
    int32_t pair;
    memcpy(&pair, left->data[row] + k * 4, sizeof pair);
    return _mm512_set1_epi32(pair);
}

/* Sums up products of even elements and of odd ones separately, and adds both sums at the end. */
static __m512 multiply_row(const tile_t *left, int row, const tile_t *right) {
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    for (int k = 0; k < left->row_bytes / 4; k++) {
        const __m512i a = pair_of_left(left, row, k), b = _mm512_load_si512(right->data[k]);
        even = _mm512_fmadd_ps(evens(a), evens(b), even);
        odd = _mm512_fmadd_ps(odds(a), odds(b), odd);
    }
    return _mm512_add_ps(even, odd);
}

/* It is not inlined, because compilers would move arithmetic across a change of MXCSR. */
static __attribute__((noinline)) void multiply(tile_t *result, const tile_t *left,
                                               const tile_t *right) {
    const __mmask16 columns = (__mmask16)((1u << result->row_bytes / 4) - 1);
    for (int row = 0; row < result->rows; row++) {
        const __m512 sum = _mm512_load_ps(result->data[row]);
        _mm512_mask_store_ps(result->data[row], columns,
                             _mm512_add_ps(sum, multiply_row(left, row, right)));
    }
}

void emulated_tile_dpbf16ps(int result, int left, int right) {
    tile_t *c = tile_at(result);
    const tile_t *a = tile_at(left), *b = tile_at(right);
    require(c != a && c != b && a != b, "the tiles of a product are three");
    require(c->rows == a->rows && c->row_bytes == b->row_bytes && a->row_bytes == b->rows * 4 &&
                c->row_bytes % 4 == 0,
            "[m][n] += [m][k] * [k][n]");
    const unsigned control = _mm_getcsr();
    _mm_setcsr(PRODUCT_CONTROL);
    multiply(c, a, b);
    _mm_setcsr(control);
}
