/*
 * These functions count the processors that the process may keep busy.
 */
#ifndef FLASH_CPU_COUNT_H
#define FLASH_CPU_COUNT_H

#include <stdint.h>

/* Counts the processors that the process may run on, or those that the quota of its control group
 * pays for if fewer; at least 1. The group's files are below `root`: "", or a test's folder. */
int32_t cpu_count(const char *root);

/* Returns the processors that the quota pays for, rounded up; INT32_MAX without a quota. */
int32_t cpu_quota(const char *root);

#endif
