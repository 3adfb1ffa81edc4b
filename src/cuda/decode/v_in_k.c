#include "cuda/decode/v_in_k.h"

#include "config/kernel_table.h"

#include <stddef.h>

bool v_in_k_is_small(const problem_t *problem) {
    const flash_params_t *p = &problem->params;
    const kernel_shapes_t shapes = kernel_table_shapes(&family_sm80, problem->op, problem->dtype);
    return kernel_table_least_shape(shapes, p->d_head, p->d_head_v) != NULL;
}
