/*
 * This file checks dO and dLSE, which a backward call reads, and the gradients that it writes.
 */
#include "arguments/gradients.h"

#include "core/status.h"
#include "kernels/common/dtype.h"

#include <inttypes.h>

/* ---- What is read ---- */

static flash_status_t check_d_lse(const flash_backward_args_t *a, const flash_gradients_t *g,
                                  const data_shapes_t *s, regions_t *regions) {
    const flash_tensor_t d_lse = tensor_of_rows(a->d_lse, &g->d_lse_stride, &s->q);
    const tensor_shape_t shape = tensor_shape_of_rows(&s->o);
    if (a->d_lse == NULL)
        return FLASH_SUCCESS;
    FLASH_TRY(tensor_check("d_lse", &d_lse, &shape));
    regions_add(regions, "d_lse", &d_lse, &shape);
    return FLASH_SUCCESS;
}

static flash_status_t check_inputs(const flash_backward_args_t *a, const flash_gradients_t *g,
                                   const data_shapes_t *s, regions_t *regions) {
    FLASH_REQUIRE(a->forward->lse != NULL || tensor_is_empty(&s->q), FLASH_ERROR_INVALID_ARGUMENT,
                  "lse is NULL: gradients need the LSE of the forward pass");
    FLASH_TRY(tensor_check("d_o", &a->d_o, &s->o));
    regions_add(regions, "d_o", &a->d_o, &s->o);
    return check_d_lse(a, g, s, regions);
}

/* ---- What is written ---- */

/* of: the shape of the tensor that it is a gradient of. */
static flash_status_t check_output(const char *name, const flash_tensor_t *gradient,
                                   const tensor_shape_t *of, regions_t *regions) {
    tensor_shape_t shape = *of;
    shape.element_size = dtype_size(gradient->dtype);
    shape.is_output = true;
    if (gradient->data == NULL)
        shape.batch = 0; /* nothing is written, and the rest of the tensor is looked at */
    FLASH_TRY(tensor_check(name, gradient, &shape));
    FLASH_TRY(tensor_check_output(name, gradient, &shape));
    regions_add(regions, name, gradient, &shape);
    return FLASH_SUCCESS;
}

flash_status_t arguments_check_gradients(const flash_backward_args_t *checked,
                                         const flash_gradients_t *gradients,
                                         const data_shapes_t *shapes, regions_t *regions) {
    FLASH_TRY(check_inputs(checked, gradients, shapes, regions));
    FLASH_TRY(check_output("dq", &checked->dq, &shapes->q, regions));
    FLASH_TRY(check_output("dk", &checked->dk, &shapes->k, regions));
    FLASH_TRY(check_output("dv", &checked->dv, &shapes->v, regions));
    regions_add_output_array(regions, "d_sinks", checked->d_sinks, checked->forward->n_heads,
                             sizeof *checked->d_sinks);
    return FLASH_SUCCESS;
}

/* ---- Totals ---- */

static flash_status_t check_total(const char *name, const char *of, int64_t total, int64_t tokens) {
    FLASH_REQUIRE(total == 0 || tokens <= total, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s is %" PRId64 ", and %s ends with %" PRId64 " tokens", name, total, of,
                  tokens);
    return FLASH_SUCCESS;
}

flash_status_t arguments_check_totals(const flash_backward_args_t *checked,
                                      const problem_t *problem) {
    if (problem->params.cu_seqlens_q)
        FLASH_TRY(check_total("total_q", "cu_seqlens_q", checked->total_q, problem->total_q));
    if (problem->params.cu_seqlens_k)
        FLASH_TRY(check_total("total_k", "cu_seqlens_k", checked->total_k, problem->total_k));
    return FLASH_SUCCESS;
}
