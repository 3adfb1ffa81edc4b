/*
 * Kernels are timed on a problem.
 */
#ifndef FLASH_API_MEASURE_H
#define FLASH_API_MEASURE_H

#include "select/measurement.h"

/* Writes the median seconds of each kernel's launches. */
flash_status_t measure(const measurement_t *m, double *seconds);

#endif
