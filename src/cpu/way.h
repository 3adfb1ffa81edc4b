/*
 * Which way a CPU task goes: how many rows it may have, and how it reads its keys. The one place
 * where that is decided; kernels follow the task's way.
 */
#ifndef FLASH_CPU_WAY_H
#define FLASH_CPU_WAY_H

#include "kernels/cpu/cpu_kernel.h"

/* Where a task finds its keys. */
typedef enum cpu_keys {
    CPU_KEYS_ALONE,  /* in K and V; it has all keys of its rows */
    CPU_KEYS_SPLIT,  /* in K and V; other tasks have other keys of the same rows */
    CPU_KEYS_PACKED, /* packed by tasks before it */
} cpu_keys_t;

/* Return the rows, at most, of a task that splits the keys, and of any other task. */
int64_t cpu_way_split_rows(const cpu_family_t *family, const flash_config_t *config);
int32_t cpu_way_task_rows(const cpu_family_t *family, const flash_config_t *config);

/* Says whether tasks of so many rows, a block or a part of one, can be two tasks each. */
bool cpu_way_is_divisible(const cpu_family_t *family, int32_t rows);

/* Returns the rows of a task at least, where a block of rows is several tasks' and none has the
 * last rows. */
int32_t cpu_way_least_rows(const cpu_family_t *family, const flash_config_t *config);

/* Says whether a problem is too little work for more than one thread. */
bool cpu_way_is_small(const flash_params_t *params);

/* Says whether the tasks of a head with so many rows want its keys packed by tasks before them. */
bool cpu_way_shares(const cpu_family_t *family, const flash_config_t *config, int64_t n_rows);

/* Returns the way of a task of n_rows rows of each head, which see n_keys keys in all. */
cpu_way_t cpu_way(const cpu_family_t *family, const flash_config_t *config,
                  const flash_params_t *params, cpu_keys_t keys, int64_t n_rows, int64_t n_keys);

/* Says whether a task of that way reads K and V where they lie, so that it may have several heads.
 */
bool cpu_way_is_in_place(cpu_way_t way);

/* Says whether a task of that way reads keys in steps of keys. */
bool cpu_way_has_steps(cpu_way_t way);

#endif
