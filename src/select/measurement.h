/*
 * A measurement is what flash_measure() times: kernels that take turns on one problem.
 */
#ifndef FLASH_SELECT_MEASUREMENT_H
#define FLASH_SELECT_MEASUREMENT_H

#include "config/kernel_table.h"

/* The problem's data are checked. What runs has output, and each kernel serves it. */
typedef struct measurement {
    const flash_kernel_t *const *kernels;
    int32_t n_kernels;
    int32_t n_launches; /* of each kernel, in turns */
    const problem_t *problem;
    const device_t *device;
    flash_stream_t stream;
} measurement_t;

/* Returns the kernel of launch i. The kernels take turns. */
static inline const flash_kernel_t *measurement_kernel(const measurement_t *m, int64_t i) {
    return m->kernels[i % m->n_kernels];
}

static inline int64_t measurement_launches(const measurement_t *m) {
    return (int64_t)m->n_kernels * m->n_launches;
}

static inline flash_status_t measurement_launch(const measurement_t *m,
                                                const flash_kernel_t *kernel) {
    return problem_calls(kernel, m->problem)->launch(kernel, m->problem, m->device, m->stream);
}

#endif
