/*
 * Launches on CUDA devices are timed here.
 */
#ifndef FLASH_CUDA_MEASURE_H
#define FLASH_CUDA_MEASURE_H

#include "select/measurement.h"

/* Writes the seconds of each launch to times[0 ... measurement_launches(m)). */
flash_status_t measure_cuda(const measurement_t *m, double *times);

#endif
