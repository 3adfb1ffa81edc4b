/*
 * A client that was compiled against the header of the last release (flashattn.h in this folder)
 * and runs with the library of today. All scores are 0, so that O is the mean of the visible V and
 * LSE the logarithm of their number.
 */
#include "flashattn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SEQLEN = 4, SPLIT = 2 };

static const float v_values[SEQLEN] = {1, 2, 4, 9};

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s\n%s\n", __LINE__, #condition, flash_last_error());        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static int is_close(float a, double b) {
    return fabs((double)a - b) <= 1e-6;
}

/* ---- Attention ---- */

typedef struct result {
    float o[SEQLEN];
    float lse[SEQLEN];
} result_t;

/* One head of dimension 1. */
static flash_forward_args_t forward_args(float *q, float *k, float *v, result_t *result) {
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    args.device = FLASH_DEVICE_CPU;
    args.dtype = FLASH_DTYPE_FP32;
    args.q = flash_tensor_bshd(q, SEQLEN, 1, 1);
    args.k = flash_tensor_bhsd(k, 1, SEQLEN, 1);
    args.v = flash_tensor_bhsd(v, 1, SEQLEN, 1);
    args.o = flash_tensor_bshd(result->o, SEQLEN, 1, 1);
    args.lse = result->lse;
    args.batch = args.n_heads = args.n_heads_kv = args.d_head = 1;
    args.seqlen_q = args.seqlen_k = SEQLEN;
    return args;
}

static void run(flash_forward_args_t *args, const flash_kernel_t *kernel) {
    CHECK(flash_query_support(args, kernel, NULL, 0) == FLASH_SUCCESS);
    CHECK(flash_workspace_size(args, kernel, &args->workspace_size) == FLASH_SUCCESS);
    CHECK(flash_prepare(args, kernel) == FLASH_SUCCESS);
    args->workspace = malloc((size_t)args->workspace_size + 1);
    CHECK(args->workspace != NULL);
    CHECK(flash_forward(args, kernel, NULL) == FLASH_SUCCESS);
    free(args->workspace);
}

/* Row i sees the keys from first[i] to last[i], both included. */
static void check_rows(const result_t *result, const int *first, const int *last) {
    for (int i = 0; i < SEQLEN; i++) {
        double sum = 0;
        for (int j = first[i]; j <= last[i]; j++)
            sum += (double)v_values[j];
        const int n = last[i] - first[i] + 1;
        CHECK(is_close(result->o[i], sum / n));
        CHECK(is_close(result->lse[i], log(n)));
    }
}

typedef struct problem {
    float q[SEQLEN], k[SEQLEN], v[SEQLEN];
    result_t result;
    flash_forward_args_t args;
} problem_t;

static void make_problem(problem_t *p) {
    for (int i = 0; i < SEQLEN; i++) {
        p->q[i] = p->k[i] = 0;
        p->v[i] = v_values[i];
        p->result.o[i] = p->result.lse[i] = -1;
    }
    p->args = forward_args(p->q, p->k, p->v, &p->result);
}

static void run_one(void *context, int32_t n_tasks, flash_task_t task, void *argument) {
    for (int32_t i = 0; i < n_tasks; i++)
        task(argument, i);
    ++*(int *)context;
}

/* A causal mask, a window of one key to the left, and threads of the caller. */
static void check_masks(void) {
    static const int first[] = {0, 0, 1, 2}, last[] = {0, 1, 2, 3};
    int n_runs = 0;
    flash_executor_t executor = FLASH_EXECUTOR_INIT;
    executor.n_workers = 1;
    executor.run = run_one;
    executor.context = &n_runs;
    problem_t p;
    make_problem(&p);
    p.args.flags = FLASH_FLAG_CAUSAL | FLASH_FLAG_WINDOW;
    p.args.window_left = 1;
    p.args.window_right = -1;
    p.args.softcap = 5;
    p.args.softmax_scale = 2;
    p.args.executor = &executor;
    run(&p.args, NULL);
    check_rows(&p.result, first, last);
}

/* Two sequences of one and three tokens, of which the second uses two keys. */
static void check_ragged(void) {
    static const int32_t cu_seqlens[] = {0, 1, SEQLEN}, seqused_k[] = {1, 2};
    static const int first[] = {0, 1, 1, 1}, last[] = {0, 2, 2, 2};
    const flash_kernel_t *kernel = NULL;
    problem_t p;
    make_problem(&p);
    p.args.batch = 2;
    p.args.cu_seqlens_q = p.args.cu_seqlens_k = cu_seqlens;
    p.args.seqused_k = seqused_k;
    CHECK(flash_select_kernel(&p.args, &kernel, NULL, 0) == FLASH_SUCCESS);
    run(&p.args, kernel);
    check_rows(&p.result, first, last);
}

/* The halves of the keys apart, then merged. */
static void check_combine(void) {
    static const int first[SEQLEN] = {0}, last[] = {3, 3, 3, 3};
    result_t halves[2], merged;
    problem_t p;
    make_problem(&p);
    for (int i = 0; i < 2; i++) {
        flash_forward_args_t args = forward_args(p.q, p.k, p.v + i * SPLIT, &halves[i]);
        args.seqlen_k = SPLIT;
        run(&args, NULL);
    }
    flash_combine_args_t args = FLASH_COMBINE_ARGS_INIT;
    args.dtype = FLASH_DTYPE_FP32;
    args.o_partial = flash_tensor_bshd(halves[0].o, SEQLEN, 1, 1);
    args.stride_partial = args.lse_partial_stride = sizeof(result_t) / sizeof(float);
    args.lse_partial = halves[0].lse;
    args.lse_partial_stride_batch = args.lse_partial_stride_head = SEQLEN;
    args.lse_partial_stride_seq = 1;
    args.o = flash_tensor_bshd(merged.o, SEQLEN, 1, 1);
    args.lse = merged.lse;
    args.n_partials = 2;
    args.batch = args.n_heads = args.d_head = 1;
    args.seqlen_q = SEQLEN;
    CHECK(flash_combine(&args, NULL) == FLASH_SUCCESS);
    check_rows(&merged, first, last);
}

/* ---- The rest ---- */

/* Rows whose configuration has a field that this header lacks are refused, the others come back. */
static void check_table(void) {
    int32_t n_known = 0;
    for (int32_t i = 0; i < flash_kernel_count(); i++) {
        const flash_kernel_t *kernel = flash_kernel_at(i);
        flash_config_t config = FLASH_CONFIG_INIT, parsed = FLASH_CONFIG_INIT;
        char text[FLASH_CONFIG_TEXT_SIZE];
        CHECK(flash_kernel_name(kernel) != NULL);
        if (flash_kernel_config(kernel, &config) == FLASH_ERROR_UNSUPPORTED)
            continue;
        n_known++;
        CHECK(flash_config_format(&config, text, sizeof text) == FLASH_SUCCESS);
        CHECK(flash_config_parse(text, &parsed) == FLASH_SUCCESS);
        CHECK(parsed.arch == config.arch && parsed.features == config.features);
        const flash_kernel_t *found = flash_lookup_kernel(&parsed);
        CHECK(found == kernel || flash_last_status() == FLASH_ERROR_UNSUPPORTED ||
              flash_last_status() == FLASH_ERROR_NO_DEVICE);
    }
    CHECK(n_known > 0);
}

static void check_devices(void) {
    flash_device_info_t info = FLASH_DEVICE_INFO_INIT;
    flash_kernel_resources_t resources = FLASH_KERNEL_RESOURCES_INIT;
    flash_team_t team;
    CHECK(flash_device_info(FLASH_DEVICE_CPU, &info) == FLASH_SUCCESS);
    CHECK(info.device == FLASH_DEVICE_CPU && info.n_threads >= 1);
    CHECK(flash_kernel_resources(flash_kernel_at(0), FLASH_DEVICE_CUDA, &resources) ==
          FLASH_ERROR_UNSUPPORTED);
    CHECK(flash_team_init(&team, 1) == FLASH_SUCCESS);
    flash_team_finish(&team);
    flash_team_destroy(&team);
    CHECK(flash_set_tuning(FLASH_TUNING_HEADER "\n") == FLASH_SUCCESS);
    CHECK(flash_set_tuning(NULL) == FLASH_SUCCESS);
}

int main(void) {
    CHECK(flash_abi_version() == FLASH_ABI_VERSION);
    CHECK(flash_version_number() >= FLASH_VERSION_NUMBER);
    check_masks();
    check_ragged();
    check_combine();
    check_table();
    check_devices();
    return 0;
}
