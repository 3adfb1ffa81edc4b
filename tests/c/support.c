/*
 * The problems of the C tests, and the attention that their results are compared with.
 */
#include "support.h"

#include <math.h>

enum { CANARY = 64 }; /* bytes on each side of an output */

const sizes_t SMALL = {
    .batch = 2, .seqlen_q = 3, .seqlen_k = 5, .n_heads = 4, .n_heads_kv = 2, .d_head = 8};

static void *checked_malloc(size_t size) {
    void *memory = malloc(size ? size : 1);
    if (memory == NULL)
        fail_msg("no memory for %zu bytes", size);
    return memory;
}

/* Returns a uniform number in -1 ... 1. */
static float random_number(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / 8388608.0f - 1.0f;
}

static float *random_tensor(size_t count, uint32_t *state) {
    float *tensor = checked_malloc(count * sizeof *tensor);
    for (size_t i = 0; i < count; i++)
        tensor[i] = random_number(state);
    return tensor;
}

static float *guarded_output(size_t count) {
    const size_t bytes = count * sizeof(float);
    unsigned char *memory = checked_malloc(bytes + 2 * CANARY);
    memset(memory, 0xc5, bytes + 2 * CANARY);
    return (float *)(void *)(memory + CANARY);
}

static void free_guarded(float *output) {
    if (output != NULL)
        free((unsigned char *)output - CANARY);
}

void problem_create(test_problem_t *p, sizes_t s, uint32_t seed) {
    const size_t rows_q = (size_t)(s.batch * s.seqlen_q * s.n_heads);
    const size_t rows_k = (size_t)(s.batch * s.seqlen_k * s.n_heads_kv);
    const size_t d = (size_t)s.d_head;
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    p->o_count = rows_q * d;
    p->lse_count = rows_q;
    p->q = random_tensor(rows_q * d, &seed);
    p->k = random_tensor(rows_k * d, &seed);
    p->v = random_tensor(rows_k * d, &seed);
    p->o = guarded_output(p->o_count);
    p->lse = guarded_output(p->lse_count);
    args.dtype = FLASH_DTYPE_FP32;
    args.batch = s.batch;
    args.seqlen_q = s.seqlen_q;
    args.seqlen_k = s.seqlen_k;
    args.n_heads = s.n_heads;
    args.n_heads_kv = s.n_heads_kv;
    args.d_head = s.d_head;
    args.q = flash_tensor_bshd(p->q, s.seqlen_q, s.n_heads, s.d_head);
    args.k = flash_tensor_bshd(p->k, s.seqlen_k, s.n_heads_kv, s.d_head);
    args.v = flash_tensor_bshd(p->v, s.seqlen_k, s.n_heads_kv, s.d_head);
    args.o = flash_tensor_bshd(p->o, s.seqlen_q, s.n_heads, s.d_head);
    args.lse = p->lse;
    p->args = args;
    problem_poison(p);
    problem_reallocate_workspace(p);
}

void problem_destroy(test_problem_t *p) {
    free(p->q);
    free(p->k);
    free(p->v);
    free_guarded(p->o);
    free_guarded(p->lse);
    free(p->args.workspace);
}

void problem_reallocate_workspace(test_problem_t *p) {
    free(p->args.workspace);
    p->args.workspace = NULL;
    assert_success(flash_workspace_size(&p->args, NULL, &p->args.workspace_size));
    p->args.workspace = checked_malloc((size_t)p->args.workspace_size);
}

void problem_poison(test_problem_t *p) {
    memset(p->o, 0xff, p->o_count * sizeof *p->o);
    memset(p->lse, 0xff, p->lse_count * sizeof *p->lse);
}

static bool all_bytes_are(const void *memory, unsigned char value, size_t size) {
    const unsigned char *bytes = memory;
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != value)
            return false;
    return true;
}

bool problem_is_untouched(const test_problem_t *p) {
    return all_bytes_are(p->o, 0xff, p->o_count * sizeof *p->o) &&
           all_bytes_are(p->lse, 0xff, p->lse_count * sizeof *p->lse);
}

static void check_canary(const float *output, size_t count) {
    assert_true(all_bytes_are((const unsigned char *)output - CANARY, 0xc5, CANARY));
    assert_true(all_bytes_are(output + count, 0xc5, CANARY));
}

void problem_check_canaries(const test_problem_t *p) {
    check_canary(p->o, p->o_count);
    check_canary(p->lse, p->lse_count);
}

bool problem_same_bits(const test_problem_t *a, const test_problem_t *b) {
    return a->o_count == b->o_count && a->lse_count == b->lse_count &&
           memcmp(a->o, b->o, a->o_count * sizeof *a->o) == 0 &&
           memcmp(a->lse, b->lse, a->lse_count * sizeof *a->lse) == 0;
}

void problem_run(test_problem_t *p) {
    assert_success(flash_forward(&p->args, NULL, NULL));
}

static bool library_has_cuda(void) {
    flash_config_t config = FLASH_CONFIG_INIT;
    const flash_kernel_t *last = flash_kernel_at(flash_kernel_count() - 1);
    return flash_kernel_config(last, &config) == FLASH_SUCCESS && config.arch >= FLASH_ARCH_SM80;
}

int default_threads(void **state) {
    (void)state;
    assert_success(flash_set_parallel_for(NULL, NULL, 0));
    assert_success(flash_set_num_threads(0));
    return 0;
}

void check_refusal(flash_status_t status, flash_status_t expected, const char *words) {
    if (expected == ABSENT_DEVICE_STATUS)
        expected = library_has_cuda() ? FLASH_ERROR_NO_DEVICE : FLASH_ERROR_UNSUPPORTED;
    if (status != expected)
        fail_msg("%s instead of %s; the last error is \"%s\"", flash_status_string(status),
                 flash_status_string(expected), flash_last_error());
    if (strstr(flash_last_error(), words) == NULL)
        fail_msg("\"%s\" does not have \"%s\" in it", flash_last_error(), words);
}

/* ---- Attention in double, one row at a time ---- */

static const float *row(const flash_tensor_t *tensor, int64_t b, int64_t s, int64_t h) {
    return (const float *)tensor->data + b * tensor->stride_batch + s * tensor->stride_seq +
           h * tensor->stride_head;
}

static int64_t place(const flash_forward_args_t *a, int64_t i) {
    return i + a->seqlen_k - a->seqlen_q + a->diagonal_offset;
}

static bool sees(const flash_forward_args_t *a, int64_t i, int64_t j) {
    const int64_t distance = j - place(a, i);
    const bool windowed = (a->flags & FLASH_FLAG_WINDOW) != 0;
    if ((a->flags & FLASH_FLAG_CAUSAL) && distance > 0)
        return false;
    if (windowed && a->window_left >= 0 && distance < -a->window_left)
        return false;
    return !(windowed && a->window_right >= 0 && distance > a->window_right);
}

static double score(const flash_forward_args_t *a, const float *q, const float *k) {
    const double scale =
        a->softmax_scale > 0 ? (double)a->softmax_scale : 1.0 / sqrt((double)a->d_head);
    double s = 0;
    for (int64_t x = 0; x < a->d_head; x++)
        s += (double)q[x] * (double)k[x];
    s *= scale;
    return a->softcap > 0 ? (double)a->softcap * tanh(s / (double)a->softcap) : s;
}

static double head_scale(const flash_mask_t *m, int64_t h) {
    float factor = 1;
    if (m->head_scale != NULL)
        memcpy(&factor, (const char *)m->head_scale + h * 4, sizeof factor);
    return (double)factor;
}

static double masked(const flash_mask_t *m, int64_t b, int64_t h, int64_t i, int64_t j) {
    const int64_t at = b * m->stride_batch + h * m->stride_head + i * m->stride_query;
    float number;
    uint32_t word;
    if (m->kind == FLASH_MASK_BITS) {
        memcpy(&word, (const char *)m->data + (at + j / 32) * 4, sizeof word);
        return word >> j % 32 & 1 ? 0 : -(double)INFINITY;
    }
    memcpy(&number, (const char *)m->data + (at + j * m->stride_key) * 4, sizeof number);
    return (double)number * (isinf(number) ? 1 : head_scale(m, h));
}

/* Returns what joins a score. A mask of numbers is of fp32. */
static double bias(const flash_forward_args_t *a, int64_t b, int64_t h, int64_t i, int64_t j) {
    const flash_mask_t *m = a->mask;
    double sum = 0;
    if (a->alibi_slopes != NULL) {
        float slope;
        memcpy(&slope, (const char *)a->alibi_slopes + (b * a->alibi_stride_batch + h) * 4,
               sizeof slope);
        sum -= (double)slope * fabs((double)(place(a, i) - j));
    }
    if (m != NULL) {
        const bool is_last = (m->flags & FLASH_MASK_LAST_KEYS) != 0;
        const int64_t column = j - (is_last ? a->seqlen_k - m->n_keys : m->first_key);
        if (column >= 0 && column < m->n_keys)
            sum += masked(m, b, h, i, column);
    }
    return sum;
}

/* Scores here are so small that no maximum has to be subtracted. */
static double expected_row(const flash_forward_args_t *a, int64_t b, int64_t i, int64_t h,
                           double *o) {
    const int64_t h_kv = h / (a->n_heads / a->n_heads_kv);
    double sum = 0;
    for (int64_t x = 0; x < a->d_head; x++)
        o[x] = 0;
    for (int64_t j = 0; j < a->seqlen_k; j++) {
        if (!sees(a, i, j))
            continue;
        const double p =
            exp(score(a, row(&a->q, b, i, h), row(&a->k, b, j, h_kv)) + bias(a, b, h, i, j));
        sum += p;
        for (int64_t x = 0; x < a->d_head; x++)
            o[x] += p * (double)row(&a->v, b, j, h_kv)[x];
    }
    const double divisor = a->sinks != NULL ? sum + exp((double)a->sinks[h]) : sum;
    for (int64_t x = 0; x < a->d_head && sum > 0; x++)
        o[x] /= divisor;
    return log(sum);
}

static void check_close(double actual, double expected, const char *what) {
    const double tolerance = 1e-5 * fabs(expected) + 1e-5;
    if (actual != expected && !(fabs(actual - expected) <= tolerance))
        fail_msg("%s is %.9g: expected %.9g", what, actual, expected);
}

static void check_row(const test_problem_t *p, int64_t b, int64_t i, int64_t h, double *expected) {
    const flash_forward_args_t *a = &p->args;
    const double lse = expected_row(a, b, i, h, expected);
    const float *o = row(&a->o, b, i, h);
    for (int64_t x = 0; x < a->d_head; x++)
        check_close((double)o[x], expected[x], "an element of O");
    if (a->lse != NULL)
        check_close((double)a->lse[(b * a->n_heads + h) * a->seqlen_q + i], lse, "LSE");
}

void problem_check_result(const test_problem_t *p) {
    double *expected = checked_malloc((size_t)p->args.d_head * sizeof *expected);
    for (int64_t b = 0; b < p->args.batch; b++)
        for (int64_t h = 0; h < p->args.n_heads; h++)
            for (int64_t i = 0; i < p->args.seqlen_q; i++)
                check_row(p, b, i, h, expected);
    free(expected);
    problem_check_canaries(p);
}
