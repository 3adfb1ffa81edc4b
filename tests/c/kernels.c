/*
 * Every CPU kernel that this machine runs is compared with the reference kernel, in each
 * combination of types of Q, K, V and O that it serves, and with itself with keys in pages. Kernels
 * of latent tokens take half of the time; with the argument "latent" the program checks these, else
 * the others. It needs only the library, so that it also runs without cmocka, as in a cross build.
 * The oracle and the wide ranges are in tests/python.
 */
#include "flashattn.h"
#include "forward_rows.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct shape {
    int64_t batch, seqlen_q, seqlen_k, n_heads, n_heads_kv, d_head;
    uint32_t flags;
    int64_t left, right;
    float softcap;
    int64_t nan_key; /* the key, from 1 on, whose V is NaN; 0: none */
    int64_t chunk;   /* attention_chunk */
} shape_t;

/* The shapes have tile edges, few rows, split keys, shared keys, every mask, and hidden NaN. */
static const shape_t SHAPES[] = {
    {2, 3, 5, 4, 2, 8, 0, 0, 0, 0, 0, 0},
    {1, 65, 129, 3, 1, 24, FLASH_FLAG_CAUSAL, 0, 0, 0, 0, 0},
    {1, 130, 300, 4, 2, 64, FLASH_FLAG_WINDOW, 40, 7, 0, 0, 0},
    {1, 70, 33, 2, 2, 13, FLASH_FLAG_CAUSAL, 0, 0, 0, 0, 0},
    {1, 100, 100, 2, 1, 128, 0, 0, 0, 2, 0, 0},
    {2, 1, 1100, 8, 2, 64, 0, 0, 0, 0, 0, 0},
    {1, 5, 1300, 4, 1, 40, FLASH_FLAG_CAUSAL, 0, 0, 0, 0, 0},
    {1, 300, 600, 1, 1, 72, FLASH_FLAG_CAUSAL | FLASH_FLAG_WINDOW, 90, -1, 0, 0, 0},
    {1, 150, 150, 2, 1, 40, FLASH_FLAG_CAUSAL | FLASH_FLAG_WINDOW, 70, -1, 0, 68, 0},
    {1, 150, 150, 2, 1, 64, FLASH_FLAG_CAUSAL | FLASH_FLAG_WINDOW, 70, -1, 0, 69, 0},
    {1, 130, 130, 2, 1, 64, FLASH_FLAG_CAUSAL, 0, 0, 0, 70, 48},
    {1, 60, 150, 4, 2, 40, 0, 0, 0, 0, 0, 100},
    {2, 3, 1300, 8, 2, 64, FLASH_FLAG_CAUSAL, 0, 0, 0, 0, 1298},
};
enum { N_SHAPES = sizeof SHAPES / sizeof SHAPES[0], N_DTYPES = FLASH_DTYPE_Q4_0 + 1 };

static bool has_quant_blocks(int32_t dtype) {
    return dtype == FLASH_DTYPE_Q8_0 || dtype == FLASH_DTYPE_Q4_0;
}

/* Returns a shape for K and V of a type. Latent tokens have many columns, and one K/V head, as
 * models have it, so that they take no longer than other types. */
static shape_t shape_of(int i, int32_t kv) {
    shape_t shape = SHAPES[i];
    if (has_quant_blocks(kv))
        shape.d_head =
            (shape.d_head + FLASH_QUANT_BLOCK - 1) / FLASH_QUANT_BLOCK * FLASH_QUANT_BLOCK;
    if (kv == FLASH_DTYPE_LATENT_E4M3) {
        shape.n_heads /= shape.n_heads_kv;
        shape.n_heads_kv = 1;
    }
    return shape;
}

typedef struct types {
    int32_t kv, q, o;
} types_t;

typedef struct buffers {
    void *q, *k, *v, *o;
    float *lse;
    size_t o_count;
    size_t lse_count;
} buffers_t;

/* These tensors are of latent tokens or quantised blocks, whose elements are bytes, as of e4m3. */
static bool has_byte_elements(int32_t dtype) {
    return dtype == FLASH_DTYPE_E4M3 || dtype == FLASH_DTYPE_LATENT_E4M3 || has_quant_blocks(dtype);
}

static size_t element_size(int32_t dtype) {
    return dtype == FLASH_DTYPE_FP32 ? 4 : has_byte_elements(dtype) ? 1 : 2;
}

static void *allocate(size_t size) {
    void *memory = calloc(size + 1, 1);
    if (memory == NULL) {
        fprintf(stderr, "no memory for %zu bytes\n", size);
        exit(1);
    }
    return memory;
}

/* Fills a tensor with numbers of magnitude 1/2 ... 1 and either sign; fp32 has all its digits. */
static void *random_tensor(size_t count, int32_t dtype, uint32_t *state) {
    unsigned char *memory = allocate(count * element_size(dtype));
    for (size_t i = 0; i < count; i++) {
        *state = *state * 1664525u + 1013904223u;
        const uint32_t sign = *state & 0x80000000u, fraction = *state >> 8 & 0x7f;
        const uint32_t more = dtype == FLASH_DTYPE_FP32 ? *state >> 15 & 0xffff : 0;
        const uint32_t bits = sign | 0x3f000000u | fraction << 16 | more;
        const uint16_t bf16 = (uint16_t)(bits >> 16);
        const uint16_t fp16 = (uint16_t)(sign >> 16 | 0x3800u | fraction << 3);
        if (dtype == FLASH_DTYPE_FP32)
            memcpy(memory + 4 * i, &bits, 4);
        else if (has_byte_elements(dtype))
            memory[i] = (unsigned char)(sign >> 24 | 0x30u | fraction >> 4);
        else
            memcpy(memory + 2 * i, dtype == FLASH_DTYPE_FP16 ? &fp16 : &bf16, 2);
    }
    return memory;
}

static void set_nan(void *data, size_t i, int32_t dtype) {
    const uint16_t half = dtype == FLASH_DTYPE_FP16 ? 0x7e00 : 0x7fc0;
    const float nan = NAN;
    if (dtype == FLASH_DTYPE_FP32)
        memcpy((char *)data + 4 * i, &nan, 4);
    else if (has_byte_elements(dtype))
        ((char *)data)[i] = 0x7f;
    else
        memcpy((char *)data + 2 * i, &half, 2);
}

/* Returns an element of fp32, fp16 or bf16. */
static float element(const void *data, size_t i, int32_t dtype) {
    uint16_t half;
    uint32_t bits;
    float value;
    if (dtype == FLASH_DTYPE_FP32) {
        memcpy(&value, (const char *)data + 4 * i, 4);
        return value;
    }
    memcpy(&half, (const char *)data + 2 * i, 2);
    if (dtype == FLASH_DTYPE_BF16) {
        bits = (uint32_t)half << 16;
        memcpy(&value, &bits, 4);
        return value;
    }
    const int exponent = half >> 10 & 31;
    const float magnitude = exponent == 0    ? ldexpf((float)(half & 1023), -24)
                            : exponent == 31 ? NAN
                                             : ldexpf((float)((half & 1023) | 1024), exponent - 25);
    return half & 0x8000 ? -magnitude : magnitude;
}

/* Makes latent tokens of random bytes: gives them scales, which bytes of e4m3 are not. The rest of
 * their bytes are pairs that make numbers of bf16. */
static void set_scales(unsigned char *tokens, size_t n) {
    for (size_t i = 0; i < n; i++)
        for (size_t group = 0; group < 4; group++) {
            const float scale = (group % 2 ? -0.25f : 0.5f) * (float)(1 + (i + group) % 3);
            memcpy(tokens + i * FLASH_LATENT_TOKEN_BYTES + 512 + 4 * group, &scale, 4);
        }
}

/* Gives quantised blocks of random bytes scales of 2^-7 and 2^-5, of either sign. */
static void set_block_scales(unsigned char *blocks, size_t n_bytes, int32_t dtype) {
    const size_t block = dtype == FLASH_DTYPE_Q8_0 ? FLASH_Q8_0_BYTES : FLASH_Q4_0_BYTES;
    const uint16_t exponent = dtype == FLASH_DTYPE_Q8_0 ? 0x2000 : 0x2800;
    for (size_t i = 0; i < n_bytes / block; i++) {
        const uint16_t scale = (uint16_t)(exponent | (i % 3 == 0 ? 0x8000 : 0) | i % 7 << 6);
        memcpy(blocks + i * block, &scale, sizeof scale);
    }
}

/* Head dimensions of K and V, and the elements from head to head. */
typedef struct dims {
    int64_t k, v, k_elements, v_elements;
} dims_t;

static dims_t dims_of(const shape_t *s, int32_t kv) {
    const dims_t latent = {576, 512, FLASH_LATENT_TOKEN_BYTES, FLASH_LATENT_TOKEN_BYTES};
    const int64_t d = s->d_head, n_blocks = d / FLASH_QUANT_BLOCK;
    const int64_t elements = kv == FLASH_DTYPE_Q8_0   ? n_blocks * FLASH_Q8_0_BYTES
                             : kv == FLASH_DTYPE_Q4_0 ? n_blocks * FLASH_Q4_0_BYTES
                                                      : d;
    const dims_t same = {d, d, elements, elements};
    return kv == FLASH_DTYPE_LATENT_E4M3 ? latent : same;
}

static flash_tensor_t tensor(void *data, int64_t seqlen, int64_t heads, int64_t d_head) {
    flash_tensor_t t = FLASH_TENSOR_INIT;
    t.data = data;
    t.stride_head = d_head;
    t.stride_seq = heads * d_head;
    t.stride_batch = seqlen * heads * d_head;
    return t;
}

static flash_forward_args_t arguments(const shape_t *s, types_t types, buffers_t *b) {
    const dims_t d = dims_of(s, types.kv);
    const size_t n_keys = (size_t)(s->batch * s->seqlen_k * s->n_heads_kv);
    const size_t of_v = (size_t)d.v_elements;
    const bool is_latent = types.kv == FLASH_DTYPE_LATENT_E4M3;
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    uint32_t seed = 7;
    b->lse_count = (size_t)(s->batch * s->seqlen_q * s->n_heads);
    b->o_count = b->lse_count * (size_t)d.v;
    b->q = random_tensor(b->lse_count * (size_t)d.k, types.q, &seed);
    b->k = random_tensor(n_keys * (size_t)d.k_elements, types.kv, &seed);
    b->v = is_latent ? b->k : random_tensor(n_keys * of_v, types.kv, &seed);
    if (is_latent)
        set_scales(b->k, n_keys);
    if (has_quant_blocks(types.kv)) {
        set_block_scales(b->k, n_keys * (size_t)d.k_elements, types.kv);
        set_block_scales(b->v, n_keys * of_v, types.kv);
    }
    for (size_t i = 0; s->nan_key > 0 && i < (size_t)s->n_heads_kv * of_v; i++)
        set_nan(b->v, (size_t)(s->nan_key * s->n_heads_kv) * of_v + i, types.kv);
    b->o = allocate(b->o_count * element_size(types.o));
    b->lse = allocate(b->lse_count * sizeof *b->lse);
    args.dtype = types.kv;
    args.flags = s->flags;
    args.q = tensor(b->q, s->seqlen_q, s->n_heads, d.k);
    args.k = tensor(b->k, s->seqlen_k, s->n_heads_kv, d.k_elements);
    args.v = tensor(b->v, s->seqlen_k, s->n_heads_kv, d.v_elements);
    args.o = tensor(b->o, s->seqlen_q, s->n_heads, d.v);
    args.q.dtype = types.q;
    args.o.dtype = types.o;
    args.lse = b->lse;
    args.batch = s->batch;
    args.seqlen_q = s->seqlen_q;
    args.seqlen_k = s->seqlen_k;
    args.n_heads = s->n_heads;
    args.n_heads_kv = s->n_heads_kv;
    args.d_head = d.k;
    args.d_head_v = d.v;
    args.window_left = s->left;
    args.window_right = s->right;
    args.attention_chunk = s->chunk;
    args.softcap = s->softcap;
    return args;
}

static void release(buffers_t *b) {
    free(b->q);
    if (b->v != b->k)
        free(b->v);
    free(b->k);
    free(b->o);
    free(b->lse);
}

static bool call(flash_forward_args_t *args, const flash_kernel_t *kernel) {
    flash_status_t status = flash_workspace_size(args, kernel, &args->workspace_size);
    args->workspace = allocate((size_t)args->workspace_size);
    memset(args->workspace, 0xff, (size_t)args->workspace_size); /* NaN in every type */
    if (status == FLASH_SUCCESS)
        status = flash_forward(args, kernel, NULL);
    free(args->workspace);
    if (status != FLASH_SUCCESS)
        fprintf(stderr, "%s: %s\n", flash_status_string(status), flash_last_error());
    return status == FLASH_SUCCESS;
}

static bool run(const shape_t *s, const flash_kernel_t *kernel, types_t types, buffers_t *b) {
    flash_forward_args_t args = arguments(s, types, b);
    return call(&args, kernel);
}

/* ---- Pages ---- */

/* Some sizes divide blocks of keys, others do not. */
static const int64_t PAGE_SIZES[] = {1, 5, 16, 64};
enum { N_PAGE_SIZES = sizeof PAGE_SIZES / sizeof PAGE_SIZES[0] };

/* Pages of a sequence lie in reverse order, the last sequence's first. */
static int32_t page_id(const shape_t *s, int64_t n_pages, int64_t b, int64_t i) {
    return (int32_t)(s->batch * n_pages - 1 - (b * n_pages + i));
}

/* Copies the keys to n_pages pages per sequence, with NaN in the rest of the last one. */
static void *in_pages(const shape_t *s, int32_t dtype, const void *keys, int64_t page_size,
                      int64_t n_pages) {
    const size_t token =
        (size_t)(s->n_heads_kv * dims_of(s, dtype).k_elements) * element_size(dtype);
    const size_t size = (size_t)(s->batch * n_pages * page_size) * token;
    char *pool = allocate(size);
    memset(pool, 0xff, size);
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t j = 0; j < s->seqlen_k; j++) {
            const int64_t id = page_id(s, n_pages, b, j / page_size);
            memcpy(pool + (size_t)(id * page_size + j % page_size) * token,
                   (const char *)keys + (size_t)(b * s->seqlen_k + j) * token, token);
        }
    return pool;
}

/* Says whether the results have the same bits as without pages. */
static bool same_in_pages(const shape_t *s, const flash_kernel_t *kernel, types_t types,
                          const buffers_t *expected, int64_t page_size) {
    const int64_t n_pages = (s->seqlen_k + page_size - 1) / page_size;
    int32_t *table = allocate((size_t)(s->batch * n_pages) * sizeof *table);
    int32_t *used = allocate((size_t)s->batch * sizeof *used);
    flash_paging_t paging = FLASH_PAGING_INIT;
    buffers_t b;
    flash_forward_args_t args = arguments(s, types, &b);
    for (int64_t i = 0; i < s->batch * n_pages; i++)
        table[i] = page_id(s, n_pages, i / n_pages, i % n_pages);
    for (int64_t i = 0; i < s->batch; i++)
        used[i] = (int32_t)s->seqlen_k;
    paging.page_size = page_size;
    paging.n_pages = s->batch * n_pages;
    paging.page_table = table;
    paging.page_table_stride = n_pages;
    args.k.data = in_pages(s, types.kv, b.k, page_size, n_pages);
    args.v.data = b.v == b.k ? args.k.data : in_pages(s, types.kv, b.v, page_size, n_pages);
    args.k.stride_batch = page_size * args.k.stride_seq;
    args.v.stride_batch = page_size * args.v.stride_seq;
    args.paging = &paging;
    args.seqused_k = used;
    const bool same = call(&args, kernel) &&
                      memcmp(b.o, expected->o, b.o_count * element_size(types.o)) == 0 &&
                      memcmp(b.lse, expected->lse, b.lse_count * sizeof *b.lse) == 0;
    if (!same)
        fprintf(stderr, "pages of %d keys change the results\n", (int)page_size);
    if (b.v != b.k)
        free(args.v.data);
    free(args.k.data);
    free(table);
    free(used);
    release(&b);
    return same;
}

static bool same_in_any_pages(const shape_t *s, const flash_kernel_t *kernel, types_t types,
                              const buffers_t *expected) {
    for (int i = 0; i < N_PAGE_SIZES; i++)
        if (!same_in_pages(s, kernel, types, expected, PAGE_SIZES[i]))
            return false;
    return true;
}

/* ---- Results ---- */

/* Bounds the rounding error of O or P to a type, for elements below 1 in magnitude. */
static float rounding(int32_t dtype) {
    return dtype == FLASH_DTYPE_BF16 ? 8e-3f : dtype == FLASH_DTYPE_FP16 ? 1e-3f : 1e-5f;
}

static float tolerance(const flash_config_t *config, types_t types) {
    const bool rounds_p = config->arch == FLASH_ARCH_AMX ||
                          config->arch == FLASH_ARCH_AVX512_BF16 ||
                          config->arch == FLASH_ARCH_NEON_BF16;
    return fmaxf(rounding(types.o), rounds_p ? rounding(types.kv) : 0);
}

static bool is_close(float actual, float expected, float limit, const char *what) {
    if (actual == expected || fabsf(actual - expected) <= limit ||
        (isnan(actual) && isnan(expected)))
        return true;
    fprintf(stderr, "%s is %g: expected %g\n", what, (double)actual, (double)expected);
    return false;
}

/* Returns the reference kernel of the same type. */
static const flash_kernel_t *reference_of(const flash_config_t *config) {
    flash_config_t reference = *config;
    reference.arch = FLASH_ARCH_REFERENCE;
    reference.B_r = 16;
    reference.B_c = 1;
    return flash_lookup_kernel(&reference);
}

typedef struct results {
    float *o, *lse;
} results_t;

/* Returns what the reference kernel makes of shape i, with O in fp32. It is slow, so the results
 * are kept for all kernels that get the same numbers. A Q of fp16 and one of bf16 have the same. */
static const results_t *expected_results(const flash_config_t *config, types_t types, int i) {
    static results_t kept[N_DTYPES][2][N_SHAPES];
    results_t *results = &kept[types.kv][types.q == FLASH_DTYPE_FP32][i];
    const shape_t shape = shape_of(i, types.kv);
    const types_t wide = {types.kv, types.q, FLASH_DTYPE_FP32};
    buffers_t b;
    if (results->o != NULL)
        return results;
    if (!run(&shape, reference_of(config), wide, &b))
        return NULL;
    *results = (results_t){b.o, b.lse};
    b.o = b.lse = NULL;
    release(&b);
    return results;
}

static bool same_results(const buffers_t *actual, const results_t *expected, int32_t o,
                         float limit) {
    for (size_t i = 0; i < actual->o_count; i++)
        if (!is_close(element(actual->o, i, o), expected->o[i], limit, "O"))
            return false;
    for (size_t i = 0; i < actual->lse_count; i++)
        if (!is_close(actual->lse[i], expected->lse[i], 1e-4f, "LSE"))
            return false;
    return true;
}

/* Pages are read alike whatever type O has, and those of bytes, which become fp32, whatever type Q
 * has. They are tried with one of each. */
static bool tries_pages(const flash_kernel_t *kernel, types_t types) {
    flash_config_t config = FLASH_CONFIG_INIT;
    return flash_kernel_config(kernel, &config) == FLASH_SUCCESS &&
           (config.features & FLASH_FEATURE_PAGED) != 0 &&
           (types.o == types.q && (types.q == FLASH_DTYPE_FP32 || !has_byte_elements(types.kv)));
}

static bool check_shape(const flash_kernel_t *kernel, const flash_config_t *config, types_t types,
                        int i) {
    const shape_t shape = shape_of(i, types.kv);
    const results_t *expected = expected_results(config, types, i);
    buffers_t actual;
    const bool good =
        expected != NULL && run(&shape, kernel, types, &actual) &&
        same_results(&actual, expected, types.o, tolerance(config, types)) &&
        (!tries_pages(kernel, types) || same_in_any_pages(&shape, kernel, types, &actual));
    if (!good) {
        fprintf(stderr, "%s fails on shape %d with types %d, %d, %d\n", flash_kernel_name(kernel),
                i, types.kv, types.q, types.o);
        return false;
    }
    release(&actual);
    return true;
}

static bool serves(const flash_kernel_t *kernel, types_t types) {
    buffers_t buffers;
    const shape_t shape = shape_of(0, types.kv);
    const flash_forward_args_t args = arguments(&shape, types, &buffers);
    const flash_status_t status = flash_query_support(&args, kernel, NULL, 0);
    release(&buffers);
    return status == FLASH_SUCCESS;
}

/* ---- Codes of e4m3 ---- */

enum { N_CODES = 256, CODES_D_HEAD = 72 };

/* Runs a problem in which query i sees only key i. Its V is code i, and one element of its K too,
 * so that O and LSE are decoded codes. */
static bool run_codes(const flash_kernel_t *kernel, float *o, float *lse) {
    static const shape_t own_key = {.batch = 1,
                                    .seqlen_q = N_CODES,
                                    .seqlen_k = N_CODES,
                                    .n_heads = 1,
                                    .n_heads_kv = 1,
                                    .d_head = CODES_D_HEAD,
                                    .flags = FLASH_FLAG_WINDOW};
    const types_t types = {FLASH_DTYPE_E4M3, FLASH_DTYPE_FP32, FLASH_DTYPE_FP32};
    buffers_t b;
    flash_forward_args_t args = arguments(&own_key, types, &b);
    unsigned char *k = b.k, *v = b.v;
    memset(k, 0, N_CODES * CODES_D_HEAD);
    memset(v, 0, N_CODES * CODES_D_HEAD);
    for (int i = 0; i < N_CODES; i++) {
        k[i * CODES_D_HEAD + i % CODES_D_HEAD] = (unsigned char)i;
        memset(v + i * CODES_D_HEAD, i, CODES_D_HEAD);
    }
    const bool good = call(&args, kernel);
    memcpy(o, b.o, b.o_count * sizeof *o);
    memcpy(lse, b.lse, b.lse_count * sizeof *lse);
    release(&b);
    return good;
}

/* Says whether a kernel of e4m3 decodes each code as the reference kernel does. */
static bool same_codes(const flash_kernel_t *kernel, const flash_config_t *config) {
    static float o[2][N_CODES * CODES_D_HEAD], lse[2][N_CODES];
    if (!run_codes(kernel, o[0], lse[0]) || !run_codes(reference_of(config), o[1], lse[1]))
        return false;
    for (int i = 0; i < N_CODES * CODES_D_HEAD; i++)
        if (!is_close(o[0][i], o[1][i], 0, "a code of V"))
            return false;
    for (int i = 0; i < N_CODES; i++)
        if (!is_close(lse[0][i], lse[1][i], 1e-6f * fabsf(lse[1][i]), "a code of K"))
            return false;
    return true;
}

/* Checks every pair of types of Q and O that the kernel serves. */
static bool check(const flash_kernel_t *kernel, const flash_config_t *config) {
    static const int32_t each[] = {FLASH_DTYPE_FP16, FLASH_DTYPE_BF16, FLASH_DTYPE_FP32};
    enum { N_TYPES = sizeof each / sizeof each[0] };
    for (int32_t i = 0; i < N_TYPES * N_TYPES; i++) {
        const types_t types = {config->dtype, each[i / N_TYPES], each[i % N_TYPES]};
        if (!serves(kernel, types))
            continue;
        printf("%s: types %d, %d, %d\n", flash_kernel_name(kernel), types.kv, types.q, types.o);
        for (int shape = 0; shape < N_SHAPES; shape++)
            if (!check_shape(kernel, config, types, shape))
                return false;
    }
    return config->dtype != FLASH_DTYPE_E4M3 || same_codes(kernel, config);
}

int main(int argc, char **argv) {
    const bool of_latent = argc > 1 && strcmp(argv[1], "latent") == 0;
    int n_rows = 0, n_checked = 0;
    for (int32_t i = 0; i < flash_kernel_count(); i++) {
        flash_config_t config = FLASH_CONFIG_INIT;
        const flash_kernel_t *kernel = flash_kernel_at(i);
        if (flash_kernel_config(kernel, &config) != FLASH_SUCCESS || !is_forward_row(kernel) ||
            config.arch == FLASH_ARCH_REFERENCE || config.arch >= FLASH_ARCH_SM80 ||
            (config.dtype == FLASH_DTYPE_LATENT_E4M3) != of_latent)
            continue;
        n_rows++;
        if (flash_lookup_kernel(&config) == NULL)
            continue;
        if (!check(kernel, &config))
            return 1;
        n_checked++;
    }
    printf("%d kernels agree with the reference\n", n_checked);
    return n_checked == 0 && n_rows > 0;
}
