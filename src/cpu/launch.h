/*
 * The launcher of the CPU families cuts a problem into tasks, shares them among threads, and merges
 * the partial results of tasks that have the same rows.
 */
#ifndef FLASH_CPU_LAUNCH_H
#define FLASH_CPU_LAUNCH_H

#include "config/family.h"

/* The forward pass. It ignores the device and the stream. */
extern const family_calls_t cpu_forward_calls;

#endif
