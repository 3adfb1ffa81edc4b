/*
 * Running a kernel of a CPU family: a problem is cut into tasks, the tasks are shared among
 * threads, and tasks that hold parts of the same rows are merged.
 */
#ifndef FLASH_CPU_LAUNCH_H
#define FLASH_CPU_LAUNCH_H

#include "config/family.h"

/* The forward pass. The device and the stream are not looked at. */
extern const launch_ops_t cpu_forward_ops;

#endif
