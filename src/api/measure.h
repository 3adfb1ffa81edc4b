/*
 * Kernels are timed on a problem, whatever its operation is.
 */
#ifndef FLASH_API_MEASURE_H
#define FLASH_API_MEASURE_H

#include "select/measurement.h"

/* Returns INVALID_ARGUMENT if there is nothing to measure or nowhere to write it. Looks neither at
 * the kernels nor at the problem. */
flash_status_t measure_check_counts(const measurement_t *m, const double *seconds);

/* Returns why a kernel does not serve the problem. */
flash_status_t measure_check_kernels(const measurement_t *m);

/* Writes the median seconds of each kernel's launches; 0 if the problem has no output. The counts
 * and the problem's data are checked. Fails if a kernel does not serve the problem, or if the
 * workspace does not suffice for it, before any kernel runs. */
flash_status_t measure(const measurement_t *m, double *seconds);

#endif
