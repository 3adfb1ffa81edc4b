/*
 * Computes causal attention of random data on the CPU, step by step: fill the arguments, choose a
 * kernel, allocate the workspace, call.
 *
 *     cc examples/attention.c $(pkg-config --cflags --libs flashattn) -o attention && ./attention
 */
#include <flashattn.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 2, SEQLEN = 1024, N_HEADS = 8, N_HEADS_KV = 2, D_HEAD = 64 };

/* Ends the program with the library's own message unless the call succeeded. */
static void check(flash_status_t status) {
    if (status != FLASH_SUCCESS) {
        fprintf(stderr, "%s: %s\n", flash_status_string(status), flash_last_error());
        exit(EXIT_FAILURE);
    }
}

static void *allocate(uint64_t size) {
    void *memory = malloc(size ? size : 1);
    if (!memory) {
        fprintf(stderr, "out of memory: %" PRIu64 " bytes\n", size);
        exit(EXIT_FAILURE);
    }
    return memory;
}

/* Makes a contiguous [BATCH, SEQLEN, n_heads, D_HEAD] tensor of random numbers within +-1. */
static flash_tensor_t random_tensor(int64_t n_heads) {
    const int64_t count = (int64_t)BATCH * SEQLEN * n_heads * D_HEAD;
    float *data = allocate((uint64_t)count * sizeof *data);
    for (int64_t i = 0; i < count; i++)
        data[i] = 2.0f * (float)rand() / (float)RAND_MAX - 1.0f;
    return flash_tensor_bshd(data, SEQLEN, n_heads, D_HEAD);
}

int main(void) {
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    args.device = FLASH_DEVICE_CPU;
    args.dtype = FLASH_DTYPE_FP32;
    args.flags = FLASH_FLAG_CAUSAL;
    args.q = random_tensor(N_HEADS);
    args.k = random_tensor(N_HEADS_KV);
    args.v = random_tensor(N_HEADS_KV);
    args.o = random_tensor(N_HEADS);
    args.batch = BATCH;
    args.seqlen_q = SEQLEN;
    args.seqlen_k = SEQLEN;
    args.n_heads = N_HEADS;
    args.n_heads_kv = N_HEADS_KV;
    args.d_head = D_HEAD;

    const flash_kernel_t *kernel; /* chosen once; NULL in its place chooses in each call */
    check(flash_select_kernel(&args, &kernel, NULL, 0));
    check(flash_workspace_size(&args, kernel, &args.workspace_size));
    args.workspace = allocate(args.workspace_size);
    check(flash_forward(&args, kernel, NULL));

    const float *o = args.o.data;
    printf("libflashattn %s, kernel %s\n", flash_version(), flash_kernel_name(kernel));
    printf("O = %.4f %.4f %.4f %.4f ...\n", o[0], o[1], o[2], o[3]);

    free(args.q.data);
    free(args.k.data);
    free(args.v.data);
    free(args.o.data);
    free(args.workspace);
    return EXIT_SUCCESS;
}
