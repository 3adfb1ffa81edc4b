/*
 * The way of a CPU task says how many rows it may have, and how it reads its keys. It is decided
 * only here; kernels follow the task's way.
 */
#ifndef FLASH_CPU_WAY_H
#define FLASH_CPU_WAY_H

#include "kernels/cpu/cpu_kernel.h"

/* This says where a task finds its keys. */
typedef enum cpu_keys {
    CPU_KEYS_ALONE,  /* in K and V; the task has all keys of its rows */
    CPU_KEYS_SPLIT,  /* in K and V; other tasks have other keys of the same rows */
    CPU_KEYS_PACKED, /* in a slot, packed by earlier tasks */
} cpu_keys_t;

/* These return the most rows of a task that splits the keys, and of any other task. */
int64_t cpu_way_split_rows(const cpu_family_t *family, const flash_config_t *config);
int32_t cpu_way_task_rows(const cpu_family_t *family, const flash_config_t *config);

/* Says whether a task of that many rows, a block or a part of one, can be halved. */
bool cpu_way_is_divisible(const cpu_family_t *family, int32_t rows);

/* Says whether a problem is too little work for more than one thread. */
bool cpu_way_is_small(const flash_params_t *params);

/* Says whether the tasks of a head with n_rows rows share keys that are packed before them. */
bool cpu_way_shares(const cpu_family_t *family, const flash_config_t *config, int64_t n_rows);

/* Returns the way of a task that has n_rows rows of each head, which see n_keys keys. */
cpu_way_t cpu_way(const cpu_family_t *family, const flash_config_t *config,
                  const flash_params_t *params, cpu_keys_t keys, int64_t n_rows, int64_t n_keys);

/* Says whether a task of that way reads K and V in place, so that it may have several heads. */
bool cpu_way_is_in_place(cpu_way_t way);

/* Says whether a task of that way reads keys in steps. */
bool cpu_way_has_steps(cpu_way_t way);

#endif
