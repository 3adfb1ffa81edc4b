/*
 * Validation of the arguments of flash_combine().
 */
#include "arguments/combine.h"

#include "arguments/checks.h"
#include "arguments/tensor.h"
#include "core/status.h"
#include "core/struct_size.h"
#include "kernels/common/dtype.h"

static flash_status_t check_shape(const flash_combine_args_t *a) {
    FLASH_TRY(argument_check_dtype("dtype_partial", a->dtype_partial));
    FLASH_TRY(argument_check_dtype("dtype", a->dtype));
    FLASH_TRY(argument_check_size("n_partials", a->n_partials));
    FLASH_TRY(argument_check_size("batch", a->batch));
    FLASH_TRY(argument_check_size("seqlen_q", a->seqlen_q));
    FLASH_TRY(argument_check_size("n_heads", a->n_heads));
    return argument_check_d_head(a->d_head);
}

static flash_status_t check_tensors(const flash_combine_args_t *a) {
    const tensor_shape_t partial = {a->batch, a->seqlen_q, a->n_heads, a->d_head,
                                    dtype_size(a->dtype_partial)};
    const tensor_shape_t o = {a->batch, a->seqlen_q, a->n_heads, a->d_head, dtype_size(a->dtype)};
    FLASH_TRY(tensor_check("o", &a->o, &o));
    FLASH_TRY(tensor_check_output("o", &a->o, &o));
    if (a->n_partials == 0)
        return FLASH_SUCCESS;
    FLASH_TRY(tensor_check_repeat("o_partial", &a->o_partial, &partial, a->stride_partial,
                                  a->n_partials));
    FLASH_REQUIRE(a->lse_partial != NULL || tensor_is_empty(&partial), FLASH_ERROR_INVALID_ARGUMENT,
                  "lse_partial is NULL");
    return tensor_check_apart("o", &a->o, &o, "o_partial", &a->o_partial, &partial);
}

static flash_status_t check_alignments(const flash_combine_args_t *a) {
    FLASH_TRY(argument_check_alignment("o_partial.data", a->o_partial.data,
                                       dtype_size(a->dtype_partial)));
    FLASH_TRY(argument_check_alignment("lse_partial", a->lse_partial, sizeof *a->lse_partial));
    FLASH_TRY(argument_check_alignment("o.data", a->o.data, dtype_size(a->dtype)));
    return argument_check_alignment("lse", a->lse, sizeof *a->lse);
}

flash_status_t arguments_read_combine(const flash_combine_args_t *args,
                                      flash_combine_args_t *checked) {
    FLASH_TRY(struct_read(checked, sizeof *checked, args, "flash_combine_args_t"));
    FLASH_TRY(check_shape(checked));
    if (checked->device != FLASH_DEVICE_CPU)
        FLASH_TRY(check_alignments(checked));
    return check_tensors(checked);
}
