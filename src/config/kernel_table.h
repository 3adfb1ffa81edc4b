/*
 * The table of kernels is generated (codegen/), and sorted by configuration for bsearch().
 */
#ifndef FLASH_KERNEL_TABLE_H
#define FLASH_KERNEL_TABLE_H

#include "config/family.h"
#include "flashattn.h"

struct flash_kernel {
    flash_config_t config;
    const char *name;
    void (*function)(void); /* of the type that its operation's launch knows: for FORWARD in CPU
                               families a cpu_kernel_t (kernels/cpu/cpu_kernel.h); NULL in MIXED
                               rows, which rows of other families compute, and in rows that a build
                               for tests does not compile */
    /* Beside a kernel of dK and dV that keeps dS, the one that computes dQ of it, with the same
     * parameters; else NULL. */
    void (*dq_of_ds)(void);
    const family_t *family;
    const row_facts_t *facts; /* of the family's rows for its operation */
    const row_types_t *types; /* the element types of problems that it serves */
};

extern const struct flash_kernel kernel_table[];
extern const int32_t kernel_table_count;

/* Returns the row of a configuration, or NULL when the table has none. */
const flash_kernel_t *kernel_table_find(const flash_config_t *config);

/* ---- The rows of a family for an operation with K and V of one type ---- */

/* Head dimensions and tile that rows have in common. */
typedef struct kernel_shape {
    int32_t d_head;
    int32_t d_head_v;
    int32_t B_r;
} kernel_shape_t;

/* A group's rows are next to each other in the table, and so are its shapes in kernel_shapes: each
 * once, in ascending order. */
typedef struct kernel_group {
    int32_t first_row;
    int32_t n_rows;
    int32_t first_shape;
    int32_t n_shapes;
} kernel_group_t;

extern const kernel_shape_t kernel_shapes[];
extern const kernel_group_t kernel_groups[CONFIG_N_FAMILIES][CONFIG_N_OPS][N_DTYPES + 1];

/* begin ... end - 1 */
typedef struct kernel_range {
    const flash_kernel_t *begin;
    const flash_kernel_t *end;
} kernel_range_t;

typedef struct kernel_shapes {
    const kernel_shape_t *begin;
    const kernel_shape_t *end;
} kernel_shapes_t;

static inline kernel_range_t kernel_table_rows(const family_t *family, int32_t op, int32_t dtype) {
    const kernel_group_t *group = &kernel_groups[family->facts->number][op][dtype];
    const flash_kernel_t *begin = kernel_table + group->first_row;
    return (kernel_range_t){begin, begin + group->n_rows};
}

kernel_shapes_t kernel_table_shapes(const family_t *family, int32_t op, int32_t dtype);

/* Returns the shape with the least head dimensions, and then the least B_r, of those that rows for
 * these have at least; NULL if there is none. */
const kernel_shape_t *kernel_table_least_shape(kernel_shapes_t shapes, int32_t d_head,
                                               int32_t d_head_v);

/* Returns INVALID_ARGUMENT unless the pointer is that of a row. */
flash_status_t kernel_table_check(const flash_kernel_t *kernel);

/* Finds the row of a configuration. Returns INVALID_CONFIG with the broken rule, or NOT_BUILT. */
flash_status_t kernel_table_require(const flash_config_t *config, const flash_kernel_t **kernel);

/* Returns how a kernel's family computes its operation. */
static inline const family_op_t *kernel_op(const flash_kernel_t *kernel) {
    return kernel->family->ops[kernel->config.op];
}

static inline const family_calls_t *kernel_calls(const flash_kernel_t *kernel) {
    return kernel_op(kernel)->calls;
}

/* These copy Q, and call those of the kernel (cuda/runtime/copy_q.c). */
extern const family_calls_t copy_q_calls;

/* Returns how a kernel is run for a whole problem. */
static inline const family_calls_t *problem_calls(const flash_kernel_t *kernel,
                                                  const problem_t *problem) {
    return problem->wide_q.is_copied ? &copy_q_calls : kernel_calls(kernel);
}

#endif
