/*
 * Times every kernel of the library that serves a problem, as an engine does that tunes without
 * Python. This program uses the CPU device, so that it runs anywhere. On a CUDA device the tensors
 * are device memory, and the line of flash_tuning_format() for the fastest kernel of each family
 * goes, below FLASH_TUNING_HEADER, to flash_set_tuning() or into the file that FLASHATTN_TUNING
 * names.
 *
 *     cc examples/tune.c $(pkg-config --cflags --libs flashattn) -o tune && ./tune
 */
#include <flashattn.h>

#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 1, SEQLEN = 128, HEADS = 4, D_HEAD = 64, LAUNCHES = 5 };

static void check(flash_status_t status) {
    if (status == FLASH_SUCCESS)
        return;
    fprintf(stderr, "%s: %s\n", flash_status_string(status), flash_last_error());
    exit(1);
}

static void *allocate(size_t bytes) {
    void *memory = calloc(1, bytes);
    if (memory == NULL) {
        fprintf(stderr, "out of memory: %zu bytes\n", bytes);
        exit(1);
    }
    return memory;
}

static flash_tensor_t tensor(void) { /* [batch, seqlen, heads, d_head], contiguous, zeros */
    void *data = allocate((size_t)BATCH * SEQLEN * HEADS * D_HEAD * sizeof(float));
    return flash_tensor_bshd(data, SEQLEN, HEADS, D_HEAD);
}

/* Finds the rows of the table that serve the problem here; the workspace grows to what they need.
 */
static int32_t find_kernels(flash_forward_args_t *args, const flash_kernel_t **kernels) {
    int32_t count = 0;
    for (int32_t i = 0; i < flash_kernel_count(); i++) {
        const flash_kernel_t *kernel = flash_kernel_at(i);
        uint64_t size = 0;
        if (flash_query_support(args, kernel, NULL, 0) != FLASH_SUCCESS)
            continue;
        check(flash_workspace_size(args, kernel, &size));
        args->workspace_size = size > args->workspace_size ? size : args->workspace_size;
        kernels[count++] = kernel;
    }
    return count;
}

static void print(const flash_kernel_t *kernel, double seconds) {
    flash_config_t config = FLASH_CONFIG_INIT;
    char text[FLASH_CONFIG_TEXT_SIZE];
    check(flash_kernel_config(kernel, &config));
    check(flash_config_format(&config, text, sizeof text));
    printf("%9.1f us  %s\n", seconds * 1e6, text);
}

int main(void) {
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    args.dtype = FLASH_DTYPE_FP32;
    args.batch = BATCH;
    args.seqlen_q = args.seqlen_k = SEQLEN;
    args.n_heads = args.n_heads_kv = HEADS;
    args.d_head = D_HEAD;
    args.q = tensor(), args.k = tensor(), args.v = tensor(), args.o = tensor();

    const size_t n_rows = (size_t)flash_kernel_count();
    const flash_kernel_t **kernels = allocate(n_rows * sizeof *kernels);
    double *seconds = allocate(n_rows * sizeof *seconds);
    const int32_t count = find_kernels(&args, kernels);
    args.workspace = allocate((size_t)args.workspace_size);
    check(flash_measure(&args, kernels, count, LAUNCHES, NULL, seconds));
    for (int32_t i = 0; i < count; i++)
        print(kernels[i], seconds[i]);

    free(args.q.data), free(args.k.data), free(args.v.data), free(args.o.data);
    free(args.workspace);
    free(kernels);
    free(seconds);
    return 0;
}
