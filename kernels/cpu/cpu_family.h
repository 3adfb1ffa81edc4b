/*
 * A CPU family's constant struct says of the forward pass how many rows its tasks may have, how
 * they may read keys, what memory they need. Nothing else asks which family it has in hand.
 */
#ifndef FLASH_KERNELS_CPU_FAMILY_H
#define FLASH_KERNELS_CPU_FAMILY_H

#include "common/params.h"
#include "flashattn.h"

#include <stdbool.h>
#include <stdint.h>

/* Rows are packed rows (cpu_kernel.h), blocks of rows are B_r of them. */
typedef struct cpu_family {
    /* Rows of a task. */
    int32_t row_unit;     /* a task has whole blocks, or a part of one that is a multiple of this */
    int32_t rows_max;     /* of any task */
    int32_t task_blocks;  /* blocks of rows of a task whose keys are not split, at most */
    int32_t split_blocks; /* blocks of rows of a task whose keys are split, at most */

    /* Rows of a task that reads K and V in place, at most; 0: such a task has a way of its own. */
    int32_t few_rows;            /* where its keys are not split */
    int32_t few_rows_split;      /* where they are; elements of 16 bits */
    int32_t few_rows_split_fp32; /* where they are; fp32 */

    /* Packed keys. */
    bool packs;                  /* false: tasks never pack keys */
    int32_t shares_from_rows;    /* a head with more rows has its keys packed for all of its tasks;
                                  * 0: with more than one block of rows */
    int32_t packed_element_size; /* bytes of an element of packed K and V in vector code */

    /* Keys in place. */
    int32_t vector_elements;       /* of a row of K that one vector multiplies */
    int32_t step_bytes;            /* of K of a step; 0: there are no steps */
    int32_t single_row_step_bytes; /* the same for one row of fp32 per head; 0: as for other rows */

    /* Returns the scratch bytes of a task of at most n_rows rows, by the problem's head dimensions
     * and types; a multiple of 64. */
    uint64_t (*scratch_size)(const flash_config_t *config, const flash_params_t *params,
                             int64_t n_rows);
    /* Returns the bytes of a block of B_c packed keys, of K and V; a multiple of 64. NULL where the
     * family does not pack. */
    uint64_t (*block_size)(const flash_config_t *config, const flash_params_t *params);
    /* Says whether a task with n_rows rows per head can decode on tiles. NULL: no tiles. */
    bool (*decodes)(const flash_config_t *config, const flash_params_t *params, int64_t n_rows);
} cpu_family_t;

/* Returns the facts of a FLASH_ARCH_..., or NULL where it is no CPU family. */
const cpu_family_t *cpu_family(int32_t arch);

#endif
