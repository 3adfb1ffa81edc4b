/*
 * The FLASH_* environment variables (documented in flashattn.h), each read once.
 */
#ifndef FLASH_ENVIRONMENT_H
#define FLASH_ENVIRONMENT_H

#include "flashattn.h"

#include <stdbool.h>

typedef struct environment {
    int32_t n_threads;                   /* FLASH_NUM_THREADS; 0: not given */
    uint32_t isa;                        /* FLASH_CPU_ISA: FLASH_ISA_... allowed */
    const char *isa_name;                /* its value; NULL: not given */
    bool has_config;                     /* FLASH_CONFIG is given */
    flash_config_t config;               /* its value */
    bool trace;                          /* FLASH_TRACE */
    const struct tuning_results *tuning; /* FLASH_TUNING; NULL: not given */
} environment_t;

/* The environment as it was at the first call; INVALID_ARGUMENT, at every call, when a variable
 * could not be understood. */
flash_status_t environment_get(const environment_t **environment);

#endif
