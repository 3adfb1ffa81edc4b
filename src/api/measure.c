/*
 * Kernels are timed in turns, and the median of each is taken. Here is also the clock of the CPU.
 */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "api/measure.h"

#include "core/status.h"
#include "cuda/runtime/measure.h"
#include "select/serves.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec moment;
    clock_gettime(CLOCK_MONOTONIC, &moment);
    return (double)moment.tv_sec + 1e-9 * (double)moment.tv_nsec;
}

static flash_status_t measure_cpu(const measurement_t *m, double *times) {
    for (int32_t i = 0; i < m->n_kernels; i++)
        FLASH_TRY(measurement_launch(m, m->kernels[i]));
    for (int64_t i = 0; i < measurement_launches(m); i++) {
        const double begin = now();
        FLASH_TRY(measurement_launch(m, measurement_kernel(m, i)));
        times[i] = now() - begin;
    }
    return FLASH_SUCCESS;
}

static int compare_times(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the median of one kernel's times, gathered in kernel_times[0 ... m->n_launches). */
static double median(const measurement_t *m, const double *times, int32_t kernel,
                     double *kernel_times) {
    const int32_t n = m->n_launches;
    for (int32_t i = 0; i < n; i++)
        kernel_times[i] = times[(int64_t)i * m->n_kernels + kernel];
    qsort(kernel_times, (size_t)n, sizeof kernel_times[0], compare_times);
    return (kernel_times[(n - 1) / 2] + kernel_times[n / 2]) / 2;
}

/* times has room for every launch, and behind them for those of one kernel. */
static flash_status_t measure_into(const measurement_t *m, double *times, double *seconds) {
    FLASH_TRY(device_is_cpu(m->device) ? measure_cpu(m, times) : measure_cuda(m, times));
    for (int32_t i = 0; i < m->n_kernels; i++)
        seconds[i] = median(m, times, i, times + measurement_launches(m));
    return FLASH_SUCCESS;
}

static flash_status_t measure_kernels(const measurement_t *m, double *seconds) {
    double *times = calloc((size_t)m->n_launches, ((size_t)m->n_kernels + 1) * sizeof(double));
    FLASH_REQUIRE(times != NULL, FLASH_ERROR_OUT_OF_MEMORY,
                  "no memory for times: n_launches is %d, n_kernels %d", m->n_launches,
                  m->n_kernels);
    const flash_status_t status = measure_into(m, times, seconds);
    free(times);
    return status;
}

/* ---- Checks ---- */

flash_status_t measure_check_counts(const measurement_t *m, const double *seconds) {
    FLASH_REQUIRE(m->kernels != NULL && seconds != NULL, FLASH_ERROR_INVALID_ARGUMENT, "%s is NULL",
                  m->kernels == NULL ? "kernels" : "seconds");
    FLASH_REQUIRE(m->n_kernels >= 1, FLASH_ERROR_INVALID_ARGUMENT, "n_kernels is %d: at least 1",
                  m->n_kernels);
    FLASH_REQUIRE(m->n_launches >= 1, FLASH_ERROR_INVALID_ARGUMENT, "n_launches is %d: at least 1",
                  m->n_launches);
    return FLASH_SUCCESS;
}

flash_status_t measure_check_kernels(const measurement_t *m) {
    for (int32_t i = 0; i < m->n_kernels; i++) {
        FLASH_REQUIRE(m->kernels[i] != NULL, FLASH_ERROR_INVALID_ARGUMENT, "kernels[%d] is NULL",
                      i);
        FLASH_TRY(kernel_table_check(m->kernels[i]));
        FLASH_TRY(select_check(m->kernels[i], m->problem, m->device));
    }
    return FLASH_SUCCESS;
}

/* All workspaces are checked before any kernel writes something. */
static flash_status_t check_workspaces(const measurement_t *m) {
    for (int32_t i = 0; i < m->n_kernels; i++)
        FLASH_TRY(problem_calls(m->kernels[i], m->problem)
                      ->check_workspace(m->kernels[i], m->problem, m->device));
    return FLASH_SUCCESS;
}

flash_status_t measure(const measurement_t *m, double *seconds) {
    FLASH_TRY(measure_check_kernels(m));
    if (!m->problem->has_output) {
        memset(seconds, 0, (size_t)m->n_kernels * sizeof *seconds);
        return FLASH_SUCCESS;
    }
    FLASH_TRY(check_workspaces(m));
    return measure_kernels(m, seconds);
}
