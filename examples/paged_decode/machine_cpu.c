/*
 * The processor as a machine: work is done when it is given, and a program calls its step again.
 */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct machine_program {
    machine_step_t step;
    const void *context;
};

void machine_open(void) {
}

machine_defaults_t machine_defaults(void) {
    return (machine_defaults_t){
        .batch = 4, .context = 200, .n_steps = 24, .n_layers = 2, .weight_bytes = 4 << 20};
}

int32_t machine_device(void) {
    return FLASH_DEVICE_CPU;
}

int32_t machine_dtype(void) {
    return FLASH_DTYPE_FP32;
}

size_t machine_element_bytes(void) {
    return sizeof(float);
}

flash_stream_t machine_stream(void) {
    return NULL;
}

void *machine_allocate(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory) {
        fprintf(stderr, "out of memory: %zu bytes\n", bytes);
        exit(EXIT_FAILURE);
    }
    return memory;
}

void machine_free(void *memory) {
    free(memory);
}

void machine_fill_randomly(void *memory, size_t n_elements) {
    float *values = memory;
    for (size_t i = 0; i < n_elements; i++)
        values[i] = 2.0f * (float)rand() / (float)RAND_MAX - 1.0f;
}

void *machine_allocate_host(size_t bytes) {
    return machine_allocate(bytes);
}

void machine_free_host(void *memory) {
    free(memory);
}

void machine_copy_from_host(void *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
}

void machine_copy(void *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
}

machine_program_t *machine_record(machine_step_t step, const void *context) {
    machine_program_t *program = machine_allocate(sizeof *program);
    *program = (machine_program_t){step, context};
    return program;
}

void machine_run(machine_program_t *program) {
    program->step(program->context);
}

void machine_free_program(machine_program_t *program) {
    free(program);
}

void machine_wait(void) {
}

double machine_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
