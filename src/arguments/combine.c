/*
 * Validation of the arguments of flash_combine().
 */
#include "arguments/combine.h"

#include "arguments/checks.h"
#include "arguments/tensor.h"
#include "core/status.h"
#include "core/struct_size.h"
#include "kernels/common/dtype.h"

#include <inttypes.h>

static flash_status_t check_shape(const flash_combine_args_t *a) {
    FLASH_TRY(argument_check_dtype("dtype", a->dtype));
    FLASH_TRY(argument_check_dtype("o_partial.dtype", a->o_partial.dtype));
    FLASH_TRY(argument_check_dtype("o.dtype", a->o.dtype));
    FLASH_REQUIRE((a->flags & ~(uint32_t)FLASH_FLAG_BROADCAST) == 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "flags is 0x%" PRIx32 ": only FLASH_FLAG_BROADCAST means something here",
                  a->flags);
    FLASH_TRY(argument_check_size("n_partials", a->n_partials));
    FLASH_TRY(argument_check_size("batch", a->batch));
    FLASH_TRY(argument_check_size("seqlen_q", a->seqlen_q));
    FLASH_TRY(argument_check_count("n_heads", a->n_heads));
    return argument_check_count("d_head", a->d_head);
}

/* Rows of merged and partial results go together; a row is written after it was read. */
static flash_status_t check_lse(const flash_combine_args_t *a, const tensor_shape_t *o) {
    const flash_tensor_t lse = {
        .data = a->lse, .stride_batch = o->heads * o->seq, .stride_seq = 1, .stride_head = o->seq};
    const tensor_shape_t lse_shape = {
        .batch = o->batch, .seq = o->seq, .heads = o->heads, .d_head = 1, .element_size = 4};
    return a->lse == NULL ? FLASH_SUCCESS
                          : tensor_check_apart("o", &a->o, o, "lse", &lse, &lse_shape);
}

static flash_status_t check_tensors(const flash_combine_args_t *a) {
    const tensor_shape_t partial = {.batch = a->batch,
                                    .seq = a->seqlen_q,
                                    .heads = a->n_heads,
                                    .d_head = a->d_head,
                                    .element_size = dtype_size(a->o_partial.dtype),
                                    .may_repeat = (a->flags & FLASH_FLAG_BROADCAST) != 0};
    tensor_shape_t o = partial;
    o.element_size = dtype_size(a->o.dtype);
    FLASH_TRY(tensor_check("o", &a->o, &o));
    FLASH_TRY(tensor_check_output("o", &a->o, &o));
    FLASH_TRY(check_lse(a, &o));
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
                                       dtype_size(a->o_partial.dtype)));
    FLASH_TRY(argument_check_alignment("lse_partial", a->lse_partial, sizeof *a->lse_partial));
    FLASH_TRY(argument_check_alignment("o.data", a->o.data, dtype_size(a->o.dtype)));
    return argument_check_alignment("lse", a->lse, sizeof *a->lse);
}

/* What reads the copy need not know what 0 stands for. */
static void set_default_types(flash_combine_args_t *a) {
    if (a->o_partial.dtype == 0)
        a->o_partial.dtype = a->dtype;
    if (a->o.dtype == 0)
        a->o.dtype = a->dtype;
}

flash_status_t arguments_read_combine(const flash_combine_args_t *args,
                                      flash_combine_args_t *checked) {
    FLASH_TRY(struct_read(checked, sizeof *checked, args, "flash_combine_args_t"));
    set_default_types(checked);
    FLASH_TRY(check_shape(checked));
    if (checked->device != FLASH_DEVICE_CPU)
        FLASH_TRY(check_alignments(checked));
    return check_tensors(checked);
}
