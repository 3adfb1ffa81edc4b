/*
 * The current CUDA device as a machine: one stream, and a program is a CUDA graph.
 */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "machine.h"

#include <cuda_runtime_api.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct machine_program {
    cudaGraphExec_t graph;
};

static cudaStream_t stream;

/* Ends the program with CUDA's own words unless the call succeeded. */
static void check(cudaError_t error, const char *what) {
    if (error != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
        exit(EXIT_FAILURE);
    }
}

void machine_open(void) {
    int n_devices = 0;
    check(cudaGetDeviceCount(&n_devices), "no CUDA device");
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
}

machine_defaults_t machine_defaults(void) {
    return (machine_defaults_t){.batch = 64,
                                .context = 2048,
                                .n_steps = 128,
                                .n_layers = 16,
                                .weight_bytes = (size_t)128 << 20};
}

int32_t machine_device(void) {
    return FLASH_DEVICE_CUDA_CURRENT;
}

int32_t machine_dtype(void) {
    return FLASH_DTYPE_BF16;
}

size_t machine_element_bytes(void) {
    return sizeof(uint16_t);
}

flash_stream_t machine_stream(void) {
    return stream;
}

void *machine_allocate(size_t bytes) {
    void *memory = NULL;
    check(cudaMalloc(&memory, bytes ? bytes : 1), "memory of the device");
    return memory;
}

void machine_free(void *memory) {
    check(cudaFree(memory), "freeing memory");
}

/* The upper half of a float is a bfloat16. */
static uint16_t random_bfloat16(void) {
    const union {
        float value;
        uint32_t bits;
    } random = {.value = 2.0f * (float)rand() / (float)RAND_MAX - 1.0f};
    return (uint16_t)(random.bits >> 16);
}

/* Copies one block of random numbers until the memory is full. */
void machine_fill_randomly(void *memory, size_t n_elements) {
    enum { BLOCK = 1 << 20 };
    static uint16_t block[BLOCK];
    uint16_t *elements = memory;
    for (size_t i = 0; i < BLOCK; i++)
        block[i] = random_bfloat16();
    for (size_t done = 0; done < n_elements; done += BLOCK) {
        const size_t count = n_elements - done < BLOCK ? n_elements - done : BLOCK;
        check(cudaMemcpy(elements + done, block, count * sizeof *block, cudaMemcpyHostToDevice),
              "filling memory");
    }
}

void *machine_allocate_host(size_t bytes) {
    void *memory = NULL;
    check(cudaMallocHost(&memory, bytes ? bytes : 1), "memory of the host");
    return memory;
}

void machine_free_host(void *memory) {
    check(cudaFreeHost(memory), "freeing memory of the host");
}

void machine_copy_from_host(void *to, const void *from, size_t bytes) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream),
          "copying from the host");
}

void machine_copy(void *to, const void *from, size_t bytes) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "copying");
}

machine_program_t *machine_record(machine_step_t step, const void *context) {
    cudaGraph_t graph;
    machine_program_t *program = malloc(sizeof *program);
    if (!program)
        exit(EXIT_FAILURE);
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a capture");
    step(context);
    check(cudaStreamEndCapture(stream, &graph), "ending a capture");
    check(cudaGraphInstantiate(&program->graph, graph, 0), "making a graph");
    check(cudaGraphDestroy(graph), "freeing a captured graph");
    return program;
}

void machine_run(machine_program_t *program) {
    check(cudaGraphLaunch(program->graph, stream), "launching a graph");
}

void machine_free_program(machine_program_t *program) {
    check(cudaGraphExecDestroy(program->graph), "freeing a graph");
    free(program);
}

void machine_wait(void) {
    check(cudaStreamSynchronize(stream), "waiting for the device");
}

double machine_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
