/*
 * These functions check and time the candidates of an instruction set.
 */
#ifndef FLASH_TESTS_KERNELS_RUN_H
#define FLASH_TESTS_KERNELS_RUN_H

#include "problem.h"

typedef struct run_options {
    uint64_t seed;
    int64_t draws;    /* of each candidate and type */
    const char *only; /* part of a candidate's name; NULL: all */
    bool bench;
    int64_t rows; /* of Q, S, P and O in what is timed */
} run_options_t;

/* Makes a candidate that reads beyond an input be named before the program ends. */
void run_watch_addresses(void);

/* Prints the heading of the lines that the timing prints. */
void run_print_heading(void);

/* Checks, or times, each candidate of the set in each of its types. Returns how many failed. */
int run_set(const instruction_set_t *set, const run_options_t *options);

#endif
