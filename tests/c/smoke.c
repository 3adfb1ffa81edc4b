/*
 * One call on every kernel that this machine runs, with the C library alone, for machines and
 * emulators without a test framework.
 */
#include "flashattn.h"
#include "forward_rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQLEN = 19, D_HEAD = 12, COUNT = SEQLEN * D_HEAD };

static float q[COUNT], k[COUNT], v[COUNT], o[COUNT];

static void fill(float *tensor, uint32_t state) {
    for (int i = 0; i < COUNT; i++) {
        state = state * 1664525u + 1013904223u;
        tensor[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
}

static double expected(int row, int column) {
    double sum = 0, result = 0;
    for (int j = 0; j <= row; j++) { /* causal */
        double s = 0;
        for (int x = 0; x < D_HEAD; x++)
            s += (double)q[row * D_HEAD + x] * (double)k[j * D_HEAD + x];
        const double p = exp(s / sqrt(D_HEAD));
        sum += p;
        result += p * (double)v[j * D_HEAD + column];
    }
    return result / sum;
}

static flash_tensor_t tensor(float *data) {
    flash_tensor_t t = FLASH_TENSOR_INIT;
    t.data = data;
    t.stride_batch = COUNT;
    t.stride_seq = t.stride_head = D_HEAD;
    return t;
}

static int fails(const flash_kernel_t *kernel, const char *what) {
    printf("%s: %s: %s\n", flash_kernel_name(kernel), what, flash_last_error());
    return 1;
}

static int run(const flash_kernel_t *kernel) {
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    args.dtype = FLASH_DTYPE_FP32;
    args.flags = FLASH_FLAG_CAUSAL;
    args.q = tensor(q), args.k = tensor(k), args.v = tensor(v), args.o = tensor(o);
    args.batch = args.n_heads = args.n_heads_kv = 1;
    args.seqlen_q = args.seqlen_k = SEQLEN;
    args.d_head = D_HEAD;
    memset(o, 0xff, sizeof o);
    if (flash_workspace_size(&args, kernel, &args.workspace_size) != FLASH_SUCCESS)
        return fails(kernel, "flash_workspace_size");
    args.workspace = malloc((size_t)args.workspace_size + 1);
    const flash_status_t status = flash_forward(&args, kernel, NULL);
    free(args.workspace);
    if (status != FLASH_SUCCESS)
        return fails(kernel, "flash_forward");
    for (int i = 0; i < COUNT; i++)
        if (!(fabs((double)o[i] - expected(i / D_HEAD, i % D_HEAD)) <= 1e-5))
            return fails(kernel, "a wrong result");
    printf("%s: right\n", flash_kernel_name(kernel));
    return 0;
}

int main(void) {
    int n_run = 0;
    fill(q, 1), fill(k, 2), fill(v, 3);
    for (int32_t i = 0; i < flash_kernel_count(); i++) {
        const flash_kernel_t *kernel = flash_kernel_at(i);
        flash_config_t config = FLASH_CONFIG_INIT;
        if (flash_kernel_config(kernel, &config) != FLASH_SUCCESS)
            return fails(kernel, "flash_kernel_config");
        if (!is_forward_row(kernel) || config.dtype != FLASH_DTYPE_FP32 ||
            flash_lookup_kernel(&config) == NULL)
            continue;
        if (run(kernel) != 0)
            return 1;
        n_run++;
    }
    return n_run > 0 ? 0 : 1;
}
