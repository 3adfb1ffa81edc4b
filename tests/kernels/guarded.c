/*
 * See guarded.h.
 */
#define _GNU_SOURCE
#include "guarded.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CANARY_BYTES = 256, CANARY = 0x5a, ALIGNMENT = 64 };

static void fail_without_memory(size_t size) {
    fprintf(stderr, "no memory for %zu bytes\n", size);
    exit(2);
}

static size_t round_up_to(size_t n, size_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

/* ---- Outputs ---- */

guarded_t guarded_output(size_t size) {
    guarded_t output = {.size = size};
    output.memory_size = round_up_to(size + 2 * CANARY_BYTES, ALIGNMENT);
    output.memory = aligned_alloc(ALIGNMENT, output.memory_size);
    if (output.memory == NULL)
        fail_without_memory(size);
    output.data = output.memory + CANARY_BYTES;
    memset(output.memory, CANARY, output.memory_size);
    return output;
}

void guarded_reset(const guarded_t *output, const void *initial) {
    if (initial == NULL)
        memset(output->data, 0xff, output->size);
    else
        memcpy(output->data, initial, output->size);
}

bool guarded_is_intact(const guarded_t *output) {
    for (size_t i = 0; i < CANARY_BYTES; i++)
        if (output->memory[i] != CANARY)
            return false;
    for (size_t i = CANARY_BYTES + output->size; i < output->memory_size; i++)
        if (output->memory[i] != CANARY)
            return false;
    return true;
}

void guarded_free_output(guarded_t *output) {
    free(output->memory);
    *output = (guarded_t){0};
}

/* ---- Inputs ---- */

guarded_t guarded_input(size_t size) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), readable = round_up_to(size, page);
    guarded_t input = {.memory_size = readable + page, .size = size};
    input.memory =
        mmap(NULL, input.memory_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (input.memory == MAP_FAILED || mprotect(input.memory + readable, page, PROT_NONE) != 0)
        fail_without_memory(size);
    input.data = input.memory + readable - size;
    return input;
}

void guarded_free_input(guarded_t *input) {
    munmap(input->memory, input->memory_size);
    *input = (guarded_t){0};
}
