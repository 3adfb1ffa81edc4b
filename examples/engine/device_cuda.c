/*
 * The current CUDA device: weights and what they are multiplied by are of fp16, sums of fp32, and
 * so are the hidden states. All work is on one stream; work of a shape becomes a CUDA graph, which
 * is launched whenever the shape comes again.
 */
#include "device.h"
#include "layers.h"
#include "support.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* cuBLAS needs working memory of its own, which graphs keep using; this much NVIDIA recommends. */
enum { WORKSPACE_BYTES = 32 << 20 };

typedef struct cuda {
    device_t device; /* first: a device_t * of CUDA is a cuda_t * */
    cudaStream_t stream;
    cublasHandle_t cublas;
    cudaEvent_t moments[MOST_MOMENTS];
    cudaGraphExec_t graphs[MOST_SHAPES];
    bool is_recording;
    list_t memory, memory_of_host;
} cuda_t;

/* Ends the program with CUDA's own words unless the call succeeded. */
static void check_cuda(cudaError_t error, const char *what) {
    if (error != cudaSuccess)
        fail("%s: %s", what, cudaGetErrorString(error));
}

static void check_cublas(cublasStatus_t status, const char *what) {
    if (status != CUBLAS_STATUS_SUCCESS)
        fail("%s: %s", what, cublasGetStatusString(status));
}

static void check_launch(const char *what) {
    check_cuda(cudaGetLastError(), what);
}

/* ---- Memory ---- */

static void *memory_of(cuda_t *c, size_t bytes) {
    void *memory = NULL;
    check_cuda(cudaMalloc(&memory, bytes > 0 ? bytes : 1), "memory of the device");
    check_cuda(cudaMemsetAsync(memory, 0, bytes, c->stream), "clearing memory");
    return memory;
}

static void *cuda_allocate(device_t *device, size_t bytes) {
    cuda_t *c = (cuda_t *)device;
    return list_add(&c->memory, memory_of(c, bytes));
}

static void *cuda_allocate_host(device_t *device, size_t bytes) {
    void *memory = NULL;
    check_cuda(cudaMallocHost(&memory, bytes > 0 ? bytes : 1), "memory of the host");
    memset(memory, 0, bytes);
    return list_add(&((cuda_t *)device)->memory_of_host, memory);
}

static void free_memory(void *memory) {
    check_cuda(cudaFree(memory), "freeing memory");
}

static void free_host(void *memory) {
    check_cuda(cudaFreeHost(memory), "freeing memory of the host");
}

static void cuda_copy(device_t *device, void *to, const void *from, size_t bytes) {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, ((cuda_t *)device)->stream),
               "copying");
}

static void cuda_wait(device_t *device) {
    check_cuda(cudaStreamSynchronize(((cuda_t *)device)->stream), "waiting for the device");
}

static void *cuda_place(device_t *device, const float *from, int64_t count, int32_t dtype) {
    cuda_t *c = (cuda_t *)device;
    const size_t bytes = (size_t)count * sizeof *from;
    if (dtype == FLASH_DTYPE_FP32) {
        void *numbers = cuda_allocate(device, bytes);
        cuda_copy(device, numbers, from, bytes);
        cuda_wait(device);
        return numbers;
    }
    void *rounded = cuda_allocate(device, bytes / 2), *numbers = memory_of(c, bytes);
    cuda_copy(device, numbers, from, bytes);
    layers_round(c->stream, numbers, count, rounded);
    check_launch("rounding weights");
    cuda_wait(device);
    free_memory(numbers);
    return rounded;
}

/* ---- Time, and work that is recorded ---- */

/* An event in a graph is recorded anew by each launch only if it is external. */
static void cuda_note(device_t *device, int moment) {
    cuda_t *c = (cuda_t *)device;
    const unsigned flags = c->is_recording ? cudaEventRecordExternal : cudaEventRecordDefault;
    check_cuda(cudaEventRecordWithFlags(c->moments[moment], c->stream, flags), "noting the time");
}

static double cuda_seconds(device_t *device, int from, int to) {
    const cuda_t *c = (cuda_t *)device;
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, c->moments[from], c->moments[to]),
               "reading the time");
    return 1e-3 * (double)milliseconds;
}

/* Makes a graph of the work, which is not done now. */
static cudaGraphExec_t record(cuda_t *c, void (*work)(void *context), void *context) {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    check_cuda(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal),
               "beginning a capture");
    c->is_recording = true;
    work(context);
    c->is_recording = false;
    check_cuda(cudaStreamEndCapture(c->stream, &graph), "ending a capture");
    check_cuda(cudaGraphInstantiate(&executable, graph, 0), "making a graph");
    check_cuda(cudaGraphDestroy(graph), "freeing a captured graph");
    return executable;
}

/* Work is recorded after it was done once, when all its kernels are loaded. */
static void cuda_run(device_t *device, int shape, void (*work)(void *context), void *context) {
    cuda_t *c = (cuda_t *)device;
    if (shape >= 0 && c->graphs[shape] != NULL) {
        check_cuda(cudaGraphLaunch(c->graphs[shape], c->stream), "launching a graph");
        return;
    }
    work(context);
    if (shape >= 0)
        c->graphs[shape] = record(c, work, context);
}

/* ---- Layers ---- */

static void cuda_embed(device_t *device, const int32_t *tokens, int64_t n, const matrix_t *table,
                       float *hidden) {
    layers_embed(((cuda_t *)device)->stream, tokens, n, table->data, table->columns, hidden);
    check_launch("embedding");
}

static void cuda_normalize(device_t *device, const float *x, const int32_t *rows, int64_t n,
                           const matrix_t *norm, float epsilon, void *y) {
    layers_normalize(((cuda_t *)device)->stream, x, rows, n, norm->data, norm->columns, epsilon, y);
    check_launch("a norm");
}

/* cuBLAS has columns where we have rows: to it y^T = matrix x^T. */
static void cuda_multiply(device_t *device, const void *x, int64_t n, const matrix_t *matrix,
                          result_t result, void *y) {
    const int rows = (int)matrix->rows, columns = (int)matrix->columns;
    const cudaDataType_t type = result == IN_TYPE ? CUDA_R_16F : CUDA_R_32F;
    const float one = 1, before = result == ADDED_TO_FP32 ? 1 : 0;
    check_cublas(cublasGemmEx(((cuda_t *)device)->cublas, CUBLAS_OP_T, CUBLAS_OP_N, rows, (int)n,
                              columns, &one, matrix->data, CUDA_R_16F, columns, x, CUDA_R_16F,
                              columns, &before, y, type, rows, CUBLAS_COMPUTE_32F,
                              CUBLAS_GEMM_DEFAULT),
                 "a matrix product");
}

static void cuda_gate(device_t *device, const void *x, int64_t n, int64_t inner, void *y) {
    layers_gate(((cuda_t *)device)->stream, x, n, inner, y);
    check_launch("a gate");
}

static void cuda_choose(device_t *device, const float *x, int64_t n, int64_t columns,
                        int32_t *best) {
    layers_choose(((cuda_t *)device)->stream, x, n, columns, best);
    check_launch("choosing");
}

/* ---- The device ---- */

static void cuda_close(device_t *device) {
    cuda_t *c = (cuda_t *)device;
    for (int i = 0; i < MOST_SHAPES; i++)
        if (c->graphs[i] != NULL)
            check_cuda(cudaGraphExecDestroy(c->graphs[i]), "freeing a graph");
    for (int i = 0; i < MOST_MOMENTS; i++)
        check_cuda(cudaEventDestroy(c->moments[i]), "freeing an event");
    check_cublas(cublasDestroy(c->cublas), "closing cuBLAS");
    list_free(&c->memory, free_memory);
    list_free(&c->memory_of_host, free_host);
    check_cuda(cudaStreamDestroy(c->stream), "closing a stream");
    free(c);
}

/* The stream comes first: to set it takes cuBLAS its memory away. */
static void start_cublas(cuda_t *c) {
    check_cublas(cublasCreate(&c->cublas), "cuBLAS");
    check_cublas(cublasSetStream(c->cublas, c->stream), "cuBLAS's stream");
    check_cublas(
        cublasSetWorkspace(c->cublas, cuda_allocate(&c->device, WORKSPACE_BYTES), WORKSPACE_BYTES),
        "cuBLAS's memory");
}

device_t *device_cuda(void) {
    int n_devices = 0;
    check_cuda(cudaGetDeviceCount(&n_devices), "no CUDA device");
    cuda_t *c = allocate(1, sizeof *c);
    check_cuda(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "a stream");
    for (int i = 0; i < MOST_MOMENTS; i++)
        check_cuda(cudaEventCreate(&c->moments[i]), "an event");
    start_cublas(c);
    c->device = (device_t){.number = FLASH_DEVICE_CUDA_CURRENT,
                           .dtype = FLASH_DTYPE_FP16,
                           .stream = c->stream,
                           .records = true,
                           .allocate = cuda_allocate,
                           .allocate_host = cuda_allocate_host,
                           .place = cuda_place,
                           .copy = cuda_copy,
                           .wait = cuda_wait,
                           .note = cuda_note,
                           .seconds = cuda_seconds,
                           .run = cuda_run,
                           .embed = cuda_embed,
                           .normalize = cuda_normalize,
                           .multiply = cuda_multiply,
                           .gate = cuda_gate,
                           .choose = cuda_choose,
                           .close = cuda_close};
    return &c->device;
}
