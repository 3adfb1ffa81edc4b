/*
 * How many processors the process may keep busy.
 */
#ifndef FLASH_CPU_COUNT_H
#define FLASH_CPU_COUNT_H

#include <stdint.h>

/* Counts the processors that the process may run on, or what the quota of its control group amounts
 * to where that is less; at least 1. The files of the group are looked for below `root`: "", or a
 * test's folder. */
int32_t cpu_count(const char *root);

/* Returns the processors that the quota amounts to, rounded up; INT32_MAX: there is none. */
int32_t cpu_quota(const char *root);

#endif
