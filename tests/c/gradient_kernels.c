/*
 * The kernels of gradients that this machine runs are compared with those of the reference family,
 * a family at a time, on all gradients together and on dQ alone. The program needs only the
 * library, so that it also runs without cmocka, as in a cross build. The oracle and the wide ranges
 * are in tests/python.
 */
#include "flashattn.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_HEADS = 4, N_HEADS_KV = 2, N_GRADIENTS = 3 };

/* Families whose gradients are compared, by rows of a type. Those that multiply pairs of bf16 round
 * P and dS. tolerance: of the largest number of a gradient. */
typedef struct family {
    int32_t arch;
    int32_t dtype;
    float tolerance;
} family_t;

static const family_t FAMILIES[] = {
    {FLASH_ARCH_AVX2, FLASH_DTYPE_FP32, 2e-5f},
    {FLASH_ARCH_AVX512, FLASH_DTYPE_FP32, 2e-5f},
    {FLASH_ARCH_NEON, FLASH_DTYPE_FP32, 2e-5f},
    {FLASH_ARCH_NEON, FLASH_DTYPE_BF16, 2e-5f},
    {FLASH_ARCH_AMX, FLASH_DTYPE_BF16, 1e-2f},
    {FLASH_ARCH_AVX512_BF16, FLASH_DTYPE_BF16, 1e-2f},
    {FLASH_ARCH_NEON_BF16, FLASH_DTYPE_BF16, 1e-2f},
};

typedef struct shape {
    int64_t batch, seqlen_q, seqlen_k, d_head, d_head_v;
    uint32_t flags;
    int64_t left, right, chunk;
    float softcap;
    bool has_slopes;
    float dropout;
} shape_t;

/* The shapes have tile edges, several blocks of rows and keys, every mask, and parts of vectors. */
static const shape_t SHAPES[] = {
    {2, 3, 5, 8, 8, 0, 0, 0, 0, 0, false, 0},
    {1, 65, 129, 24, 24, FLASH_FLAG_CAUSAL, 0, 0, 0, 0, true, 0},
    {1, 130, 300, 64, 64, FLASH_FLAG_WINDOW, 40, 7, 0, 0, false, 0},
    {2, 100, 70, 5, 37, 0, 0, 0, 40, 2, false, 0},
    {1, 97, 260, 130, 17, FLASH_FLAG_CAUSAL, 0, 0, 0, 1, true, 0},
    {1, 101, 301, 33, 40, 0, 0, 0, 0, 0, false, 0.3f},
    {2, 130, 150, 16, 16, FLASH_FLAG_CAUSAL, 0, 0, 0, 3, true, 0.5f},
};

/* A call and its memory: q, k, v, o, lse, dO, then the gradients of dQ, dK and dV. */
typedef struct call {
    flash_forward_args_t forward;
    flash_backward_args_t backward;
    flash_dropout_t dropout;
    float *inputs[6];
    float *gradients[N_GRADIENTS];
    size_t counts[N_GRADIENTS];
} call_t;

static void require(flash_status_t status) {
    if (status == FLASH_SUCCESS)
        return;
    printf("%s: %s\n", flash_status_string(status), flash_last_error());
    exit(1);
}

static float *random_floats(size_t n, uint32_t *seed) {
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; x != NULL && i < n; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        x[i] = (float)(*seed >> 8) * 0x1p-23f - 1;
    }
    return x;
}

/* Makes bf16 of n numbers, in place. */
static void to_bf16(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        const uint16_t half = (uint16_t)(bits >> 16);
        memcpy((char *)x + 2 * i, &half, sizeof half);
    }
}

static void *workspace_of(uint64_t size) {
    void *memory = malloc(size > 0 ? size : 1);
    if (memory == NULL)
        exit(1);
    return memory;
}

static void run_forward(flash_forward_args_t *args) {
    require(flash_workspace_size(args, NULL, &args->workspace_size));
    args->workspace = workspace_of(args->workspace_size);
    require(flash_forward(args, NULL, NULL));
    free(args->workspace);
}

static void describe(call_t *call, const shape_t *s, int32_t dtype) {
    static const float slopes[N_HEADS] = {0.1f, 0.4f, 0, 0.02f};
    const int64_t q = s->seqlen_q, k = s->seqlen_k;
    flash_forward_args_t *f = &call->forward;
    flash_backward_args_t *b = &call->backward;
    f->dtype = dtype;
    f->flags = s->flags;
    f->batch = s->batch, f->seqlen_q = q, f->seqlen_k = k;
    f->n_heads = N_HEADS, f->n_heads_kv = N_HEADS_KV;
    f->d_head = s->d_head, f->d_head_v = s->d_head_v;
    f->window_left = s->left, f->window_right = s->right;
    f->attention_chunk = s->chunk;
    f->softcap = s->softcap;
    f->alibi_slopes = s->has_slopes ? slopes : NULL;
    f->q = flash_tensor_bshd(call->inputs[0], q, N_HEADS, s->d_head);
    f->k = flash_tensor_bshd(call->inputs[1], k, N_HEADS_KV, s->d_head);
    f->v = flash_tensor_bshd(call->inputs[2], k, N_HEADS_KV, s->d_head_v);
    f->o = flash_tensor_bshd(call->inputs[3], q, N_HEADS, s->d_head_v);
    f->lse = call->inputs[4];
    b->forward = f;
    b->d_o = flash_tensor_bshd(call->inputs[5], q, N_HEADS, s->d_head_v);
    b->dq = flash_tensor_bshd(call->gradients[0], q, N_HEADS, s->d_head);
    b->dk = flash_tensor_bshd(call->gradients[1], k, N_HEADS_KV, s->d_head);
    b->dv = flash_tensor_bshd(call->gradients[2], k, N_HEADS_KV, s->d_head_v);
    b->dq.dtype = b->dk.dtype = b->dv.dtype = FLASH_DTYPE_FP32;
    call->dropout = (flash_dropout_t)FLASH_DROPOUT_INIT;
    call->dropout.p = s->dropout;
    call->dropout.seed = 2026;
    f->dropout = s->dropout > 0 ? &call->dropout : NULL;
}

static void create(call_t *call, const shape_t *s, int32_t dtype) {
    const size_t rows = (size_t)(s->batch * s->seqlen_q * N_HEADS);
    const size_t keys = (size_t)(s->batch * s->seqlen_k * N_HEADS_KV);
    const size_t d = (size_t)s->d_head, d_v = (size_t)s->d_head_v;
    const size_t inputs[] = {rows * d, keys * d, keys * d_v, rows * d_v, rows, rows * d_v};
    const size_t gradients[] = {rows * d, keys * d, keys * d_v};
    uint32_t seed = 7;
    *call = (call_t){.forward = FLASH_FORWARD_ARGS_INIT, .backward = FLASH_BACKWARD_ARGS_INIT};
    for (int i = 0; i < 6; i++) {
        call->inputs[i] = random_floats(inputs[i], &seed);
        if (dtype == FLASH_DTYPE_BF16 && i != 4)
            to_bf16(call->inputs[i], inputs[i]);
    }
    for (int i = 0; i < N_GRADIENTS; i++) {
        call->counts[i] = gradients[i];
        call->gradients[i] = random_floats(gradients[i], &seed);
    }
    describe(call, s, dtype);
    run_forward(&call->forward);
}

static void destroy(call_t *call) {
    for (int i = 0; i < 6; i++)
        free(call->inputs[i]);
    for (int i = 0; i < N_GRADIENTS; i++)
        free(call->gradients[i]);
}

/* Computes gradients; alone: dQ and nothing else. */
static void run_backward(call_t *call, const flash_kernel_t *const rows[2], bool alone) {
    flash_backward_args_t args = call->backward;
    args.dq_kernel = rows[0];
    args.dkv_kernel = rows[1];
    if (alone)
        args.dk.data = args.dv.data = NULL;
    require(flash_backward_workspace_size(&args, NULL, &args.workspace_size));
    args.workspace = workspace_of(args.workspace_size);
    require(flash_backward(&args, NULL));
    free(args.workspace);
}

static bool agree(const call_t *found, const call_t *expected, int i, float tolerance) {
    float most = 0, error = 0;
    for (size_t j = 0; j < found->counts[i]; j++) {
        const float difference = fabsf(found->gradients[i][j] - expected->gradients[i][j]);
        error = difference <= error ? error : difference; /* NaN is an error */
        most = fmaxf(most, fabsf(expected->gradients[i][j]));
    }
    return error <= tolerance * most;
}

/* Finds a family's rows of a type for dQ, and for dK and dV, with dropout, which serve every shape:
 * returns how many there are in the table, and counts those that the machine runs. */
static int find_rows(int32_t arch, int32_t dtype, const flash_kernel_t *rows[2], int *n_runnable) {
    int n = 0;
    *n_runnable = 0;
    for (int32_t i = 0; i < flash_kernel_count(); i++) {
        const flash_kernel_t *kernel = flash_kernel_at(i);
        flash_config_t config = FLASH_CONFIG_INIT;
        if (flash_kernel_config(kernel, &config) != FLASH_SUCCESS || config.arch != arch ||
            config.dtype != dtype || config.op == FLASH_OP_FORWARD ||
            !(config.features & FLASH_FEATURE_DROPOUT))
            continue;
        rows[config.op == FLASH_OP_BACKWARD_DQ ? 0 : 1] = kernel;
        *n_runnable += flash_lookup_kernel(&config) != NULL;
        n++;
    }
    return n;
}

static bool check(const flash_kernel_t *const rows[2], const flash_kernel_t *const reference[2],
                  const shape_t *s, const family_t *of) {
    call_t found, expected;
    create(&found, s, of->dtype);
    create(&expected, s, of->dtype);
    run_backward(&expected, reference, false);
    run_backward(&found, rows, false);
    bool all = true;
    for (int i = 0; i < N_GRADIENTS; i++)
        all = all && agree(&found, &expected, i, of->tolerance);
    const float before = found.gradients[0][0];
    memset(found.gradients[0], 0xff, found.counts[0] * sizeof before);
    run_backward(&found, rows, true);
    all = all && agree(&found, &expected, 0, of->tolerance) && found.gradients[0][0] == before;
    destroy(&found);
    destroy(&expected);
    return all;
}

static bool check_shapes(const flash_kernel_t *const rows[2],
                         const flash_kernel_t *const reference[2], const family_t *of) {
    for (size_t i = 0; i < sizeof SHAPES / sizeof SHAPES[0]; i++)
        if (!check(rows, reference, &SHAPES[i], of)) {
            printf("%s differs from the reference for shape %zu\n", flash_kernel_name(rows[0]), i);
            return false;
        }
    return true;
}

int main(void) {
    const flash_kernel_t *reference[2], *rows[2];
    int n_rows = 0, n_checked = 0, n_runnable;
    for (size_t a = 0; a < sizeof FAMILIES / sizeof FAMILIES[0]; a++) {
        const family_t *of = &FAMILIES[a];
        if (find_rows(FLASH_ARCH_REFERENCE, of->dtype, reference, &n_runnable) != 2)
            continue; /* a build of other kernels */
        n_rows += find_rows(of->arch, of->dtype, rows, &n_runnable);
        if (n_runnable != 2)
            continue;
        if (!check_shapes(rows, reference, of))
            return 1;
        n_checked++;
    }
    printf("%d rows of families agree with the reference\n", n_checked);
    return n_checked == 0 && n_rows > 0;
}
