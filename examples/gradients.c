/*
 * Computes attention and its gradients, and compares them with central differences: how much the
 * loss, here the sum of dO * O, changes along a random direction of Q, K and V.
 *
 *     cc examples/gradients.c $(pkg-config --cflags --libs flashattn) -o gradients && ./gradients
 */
#include <flashattn.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 2, SEQLEN = 60, N_HEADS = 4, N_HEADS_KV = 2, D_HEAD = 32 };
enum { N_Q = BATCH * SEQLEN * N_HEADS * D_HEAD, N_K = BATCH * SEQLEN * N_HEADS_KV * D_HEAD };

/* O, dO and LSE are shaped as Q, and gradients as their tensors. */
static float q[N_Q], k[N_K], v[N_K], o[N_Q], lse[BATCH * N_HEADS * SEQLEN];
static float d_o[N_Q], dq[N_Q], dk[N_K], dv[N_K];

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

/* Fills numbers with random ones within +-1. */
static void fill(float *numbers, int n) {
    for (int i = 0; i < n; i++)
        numbers[i] = 2.0f * (float)rand() / (float)RAND_MAX - 1.0f;
}

static flash_tensor_t of_queries(float *data) {
    return flash_tensor_bshd(data, SEQLEN, N_HEADS, D_HEAD);
}

static flash_tensor_t of_keys(float *data) {
    return flash_tensor_bshd(data, SEQLEN, N_HEADS_KV, D_HEAD);
}

/* Describes the forward pass, which gradients need LSE of. */
static flash_forward_args_t forward_args(void) {
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    args.dtype = FLASH_DTYPE_FP32;
    args.flags = FLASH_FLAG_CAUSAL;
    args.q = of_queries(q);
    args.k = of_keys(k);
    args.v = of_keys(v);
    args.o = of_queries(o);
    args.lse = lse;
    args.batch = BATCH;
    args.seqlen_q = SEQLEN;
    args.seqlen_k = SEQLEN;
    args.n_heads = N_HEADS;
    args.n_heads_kv = N_HEADS_KV;
    args.d_head = D_HEAD;
    check(flash_workspace_size(&args, NULL, &args.workspace_size));
    args.workspace = allocate(args.workspace_size);
    return args;
}

static void compute_gradients(const flash_forward_args_t *forward) {
    flash_backward_args_t args = FLASH_BACKWARD_ARGS_INIT;
    args.forward = forward;
    args.d_o = of_queries(d_o);
    args.dq = of_queries(dq);
    args.dk = of_keys(dk);
    args.dv = of_keys(dv);
    check(flash_backward_workspace_size(&args, NULL, &args.workspace_size));
    args.workspace = allocate(args.workspace_size);
    check(flash_backward(&args, NULL));
    free(args.workspace);
}

/* ---- The comparison ---- */

static double loss(const flash_forward_args_t *forward) {
    double sum = 0;
    check(flash_forward(forward, NULL, NULL));
    for (int i = 0; i < N_Q; i++)
        sum += (double)d_o[i] * (double)o[i];
    return sum;
}

static void move(float *x, const float *from, const float *direction, float step, int n) {
    for (int i = 0; i < n; i++)
        x[i] = from[i] + step * direction[i];
}

/* Prints the slope of the loss along a direction of x, by the gradient and by the difference. */
static void compare(const char *name, const flash_forward_args_t *forward, float *x,
                    const float *gradient, int n) {
    const float step = 1.0f / 1024;
    float *from = allocate((uint64_t)n * sizeof *from);
    float *direction = allocate((uint64_t)n * sizeof *direction);
    double slope = 0;
    fill(direction, n);
    move(from, x, direction, 0, n);
    for (int i = 0; i < n; i++)
        slope += (double)gradient[i] * (double)direction[i];
    move(x, from, direction, step, n);
    const double above = loss(forward);
    move(x, from, direction, -step, n);
    const double below = loss(forward);
    move(x, from, direction, 0, n);
    printf("%s: slope %.4f by the gradient, %.4f by a difference\n", name, slope,
           (above - below) / (2 * (double)step));
    free(from);
    free(direction);
}

int main(void) {
    fill(q, N_Q);
    fill(k, N_K);
    fill(v, N_K);
    fill(d_o, N_Q);
    const flash_forward_args_t forward = forward_args();
    check(flash_forward(&forward, NULL, NULL));
    compute_gradients(&forward);
    compare("Q", &forward, q, dq, N_Q);
    compare("K", &forward, k, dk, N_K);
    compare("V", &forward, v, dv, N_K);
    free(forward.workspace);
    return EXIT_SUCCESS;
}
