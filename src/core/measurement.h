/*
 * Timing kernels on a problem.
 */
#ifndef FLASH_MEASURE_H
#define FLASH_MEASURE_H

#include "core/device.h"
#include "flashattn.h"
#include "core/problem.h"

/* What is timed. The problem has output and checked data; each kernel serves it. */
typedef struct measurement {
    const flash_kernel_t *const *kernels;
    int32_t n_kernels;
    int32_t n_launches; /* of each kernel, in turns */
    const problem_t *problem;
    const device_t *device;
    flash_stream_t stream;
} measurement_t;

/* Launch number i of all: the kernels take turns. */
static inline const flash_kernel_t *measurement_kernel(const measurement_t *m, int64_t i) {
    return m->kernels[i % m->n_kernels];
}

static inline int64_t measurement_launches(const measurement_t *m) {
    return (int64_t)m->n_kernels * m->n_launches;
}

/* The median seconds of each kernel's launches. */
flash_status_t measure(const measurement_t *m, double *seconds);

/* On a CUDA device: the seconds of each launch, times[0 ... measurement_launches(m)). */
flash_status_t measure_cuda(const measurement_t *m, double *times);

#endif
