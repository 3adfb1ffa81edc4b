/*
 * The processor as a device: it does at once what it is told, in fp32. Its threads share the matrix
 * products, and the library's work.
 */
#include "device.h"
#include "support.h"
#include "workers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_OF_TASK = 16, LANES = 16 };

typedef struct cpu {
    device_t device; /* first: a device_t * of the processor is a cpu_t * */
    workers_t *workers;
    flash_executor_t executor;
    double moments[MOST_MOMENTS];
    list_t memory;
} cpu_t;

/* ---- Memory and time ---- */

static void *cpu_allocate(device_t *device, size_t bytes) {
    return list_add(&((cpu_t *)device)->memory, allocate(bytes, 1));
}

static void *cpu_place(device_t *device, const float *from, int64_t count, int32_t dtype) {
    (void)device, (void)count, (void)dtype; /* which is fp32 */
    return (void *)from;
}

static void cpu_copy(device_t *device, void *to, const void *from, size_t bytes) {
    (void)device;
    memcpy(to, from, bytes);
}

static void cpu_wait(device_t *device) {
    (void)device;
}

static void cpu_note(device_t *device, int moment) {
    ((cpu_t *)device)->moments[moment] = now();
}

static double cpu_seconds(device_t *device, int from, int to) {
    const cpu_t *cpu = (cpu_t *)device;
    return cpu->moments[to] - cpu->moments[from];
}

static void cpu_run(device_t *device, int shape, void (*work)(void *context), void *context) {
    (void)device, (void)shape;
    work(context);
}

/* ---- Layers ---- */

static void cpu_embed(device_t *device, const int32_t *tokens, int64_t n, const matrix_t *table,
                      float *hidden) {
    const int64_t width = table->columns;
    (void)device;
    for (int64_t i = 0; i < n; i++)
        memcpy(hidden + i * width, (const float *)table->data + tokens[i] * width,
               (size_t)width * sizeof *hidden);
}

/* The lanes are sums of their own, so that a compiler can keep them in a vector. */
static float dot(const float *a, const float *b, int64_t n) {
    float lanes[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lanes[j] += a[i + j] * b[i + j];
    for (; i < n; i++)
        sum += a[i] * b[i];
    for (int j = 0; j < LANES; j++)
        sum += lanes[j];
    return sum;
}

static void cpu_normalize(device_t *device, const float *x, const int32_t *rows, int64_t n,
                          const matrix_t *norm, float epsilon, void *to) {
    const int64_t width = norm->columns;
    const float *weights = norm->data;
    float *y = to;
    (void)device;
    for (int64_t i = 0; i < n; i++, y += width) {
        const float *row = x + (rows != NULL ? rows[i] : i) * width;
        const float factor = 1 / sqrtf(dot(row, row, width) / (float)width + epsilon);
        for (int64_t j = 0; j < width; j++)
            y[j] = row[j] * factor * weights[j];
    }
}

typedef struct product {
    const float *x;
    int64_t n;
    const matrix_t *matrix;
    int adds;
    float *y;
} product_t;

/* Computes the products of some rows of the matrix with all rows of x. */
static void multiply_rows(void *argument, int32_t index) {
    const product_t *p = argument;
    const int64_t rows = p->matrix->rows, columns = p->matrix->columns;
    const int64_t end = (int64_t)(index + 1) * ROWS_OF_TASK;
    for (int64_t row = end - ROWS_OF_TASK; row < end && row < rows; row++)
        for (int64_t i = 0; i < p->n; i++) {
            float *y = &p->y[i * rows + row];
            *y = dot(p->x + i * columns, (const float *)p->matrix->data + row * columns, columns) +
                 (p->adds ? *y : 0);
        }
}

static void cpu_multiply(device_t *device, const void *x, int64_t n, const matrix_t *matrix,
                         result_t result, void *y) {
    product_t product = {x, n, matrix, result == ADDED_TO_FP32, y};
    const int64_t n_tasks = (matrix->rows + ROWS_OF_TASK - 1) / ROWS_OF_TASK;
    workers_run(((cpu_t *)device)->workers, (int32_t)n_tasks, multiply_rows, &product);
}

static void cpu_gate(device_t *device, const void *from, int64_t n, int64_t inner, void *to) {
    const float *x = from;
    float *y = to;
    (void)device;
    for (int64_t i = 0; i < n; i++, x += 2 * inner, y += inner)
        for (int64_t j = 0; j < inner; j++)
            y[j] = x[j] / (1 + expf(-x[j])) * x[inner + j];
}

static void cpu_choose(device_t *device, const float *x, int64_t n, int64_t columns,
                       int32_t *best) {
    (void)device;
    for (int64_t i = 0; i < n; i++, x += columns) {
        best[i] = 0;
        for (int32_t j = 1; j < columns; j++)
            if (x[j] > x[best[i]])
                best[i] = j;
    }
}

/* ---- The device ---- */

static void cpu_close(device_t *device) {
    cpu_t *cpu = (cpu_t *)device;
    workers_end(cpu->workers);
    list_free(&cpu->memory, free);
    free(cpu);
}

device_t *device_cpu(int n_threads) {
    cpu_t *cpu = allocate(1, sizeof *cpu);
    cpu->workers = workers_start(n_threads);
    cpu->executor = workers_executor(cpu->workers);
    cpu->device = (device_t){.number = FLASH_DEVICE_CPU,
                             .dtype = FLASH_DTYPE_FP32,
                             .executor = &cpu->executor,
                             .allocate = cpu_allocate,
                             .allocate_host = cpu_allocate,
                             .place = cpu_place,
                             .copy = cpu_copy,
                             .wait = cpu_wait,
                             .note = cpu_note,
                             .seconds = cpu_seconds,
                             .run = cpu_run,
                             .embed = cpu_embed,
                             .normalize = cpu_normalize,
                             .multiply = cpu_multiply,
                             .gate = cpu_gate,
                             .choose = cpu_choose,
                             .close = cpu_close};
    return &cpu->device;
}
