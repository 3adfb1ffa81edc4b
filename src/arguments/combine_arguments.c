/*
 * The arguments of flash_combine() are validated here.
 */
#include "arguments/combine_arguments.h"

#include "arguments/checks.h"
#include "arguments/regions.h"
#include "arguments/tensor.h"
#include "core/status.h"
#include "core/struct_size.h"
#include "kernels/common/dtype.h"

#include <inttypes.h>

/* Says whether lists of pointers can be read. */
static bool is_on_host(const flash_combine_args_t *a) {
    return a->device == FLASH_DEVICE_CPU;
}

static flash_status_t check_shape(const flash_combine_args_t *a) {
    FLASH_TRY(argument_check_dtype("dtype", a->dtype));
    FLASH_TRY(argument_check_dtype("o_partial.dtype", a->o_partial.dtype));
    FLASH_TRY(argument_check_dtype("o.dtype", a->o.dtype));
    FLASH_TRY(argument_check_not_of_keys("o_partial.dtype", a->o_partial.dtype));
    FLASH_TRY(argument_check_not_of_keys("o.dtype", a->o.dtype));
    FLASH_REQUIRE((a->flags & ~(uint32_t)FLASH_FLAG_BROADCAST) == 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "flags is 0x%" PRIx32 ": only FLASH_FLAG_BROADCAST means something here",
                  a->flags);
    FLASH_TRY(argument_check_size("n_partials", a->n_partials));
    FLASH_TRY(argument_check_size("batch", a->batch));
    FLASH_TRY(argument_check_size("seqlen_q", a->seqlen_q));
    FLASH_TRY(argument_check_count("n_heads", a->n_heads));
    return argument_check_count("d_head", a->d_head);
}

/* ---- Tensors ---- */

static tensor_shape_t shape_of(const flash_combine_args_t *a, int32_t dtype) {
    return (tensor_shape_t){.batch = a->batch,
                            .seq = a->seqlen_q,
                            .heads = a->n_heads,
                            .d_head = a->d_head,
                            .element_size = dtype_size(dtype),
                            .may_repeat = (a->flags & FLASH_FLAG_BROADCAST) != 0};
}

/* LSE is treated as a tensor whose rows have one element. */
static tensor_shape_t lse_shape_of(const flash_combine_args_t *a) {
    tensor_shape_t shape = shape_of(a, FLASH_DTYPE_FP32);
    shape.d_head = 1;
    shape.is_array = true;
    return shape;
}

static flash_tensor_t lse_of(const flash_combine_args_t *a) {
    return (flash_tensor_t){.data = a->lse,
                            .stride_batch = a->lse_stride_batch,
                            .stride_seq = a->lse_stride_seq,
                            .stride_head = a->lse_stride_head};
}

/* Returns the LSE of a partial result as a tensor. */
static flash_tensor_t lse_partial_of(const flash_combine_args_t *a, const void *data) {
    return (flash_tensor_t){.data = (void *)(uintptr_t)data,
                            .stride_batch = a->lse_partial_stride_batch,
                            .stride_seq = a->lse_partial_stride_seq,
                            .stride_head = a->lse_partial_stride_head};
}

/* ---- Outputs ---- */

static tensor_shape_t output(tensor_shape_t shape) {
    shape.is_output = true;
    return shape;
}

/* Checks the outputs, and that they are apart from each other and from what all rows need. */
static flash_status_t check_outputs(const flash_combine_args_t *a) {
    const tensor_shape_t o = output(shape_of(a, a->o.dtype)), of_lse = output(lse_shape_of(a));
    const flash_tensor_t lse = lse_of(a);
    regions_t regions = {.n = 0};
    FLASH_TRY(tensor_check("o", &a->o, &o));
    FLASH_TRY(tensor_check_output("o", &a->o, &o));
    regions_add(&regions, "o", &a->o, &o);
    if (a->lse != NULL) {
        FLASH_TRY(tensor_check("lse", &lse, &of_lse));
        FLASH_TRY(tensor_check_output("lse", &lse, &of_lse));
        regions_add(&regions, "lse", &lse, &of_lse);
    }
    regions_add_array(&regions, "sinks", a->sinks, a->n_heads, sizeof *a->sinks);
    regions_add_array(&regions, "o_partials", a->o_partials, a->n_partials, sizeof *a->o_partials);
    regions_add_array(&regions, "lse_partials", a->lse_partials, a->n_partials,
                      sizeof *a->lse_partials);
    return regions_check(&regions);
}

/* ---- Partial results ---- */

/* Partial results side by side need a stride between them. Those in a list have none, and their
 * strides are checked with the list in place of their data. */
static flash_status_t check_partial_strides(const flash_combine_args_t *a) {
    const tensor_shape_t shape = shape_of(a, a->o_partial.dtype), lse_shape = lse_shape_of(a);
    const bool listed = a->o_partials != NULL, lse_listed = a->lse_partials != NULL;
    const tensor_repeat_t o = {"stride_partial", a->stride_partial, listed ? 1 : a->n_partials};
    const tensor_repeat_t of_lse = {"lse_partial_stride", a->lse_partial_stride,
                                    lse_listed ? 1 : a->n_partials};
    const flash_tensor_t lse =
        lse_partial_of(a, lse_listed ? (const void *)a->lse_partials : a->lse_partial);
    flash_tensor_t partial = a->o_partial;
    if (listed)
        partial.data = (void *)(uintptr_t)a->o_partials;
    FLASH_TRY(tensor_check_repeat("lse_partial", &lse, &lse_shape, &of_lse));
    return tensor_check_repeat("o_partial", &partial, &shape, &o);
}

static flash_status_t check_listed(const char *name, const void *const *list, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        FLASH_REQUIRE(list[i] != NULL, FLASH_ERROR_INVALID_ARGUMENT, "%s[%" PRId64 "] is NULL",
                      name, i);
    return FLASH_SUCCESS;
}
/* Returns a partial result. Its data is NULL where the list is in memory of a device. */
static flash_tensor_t o_partial_at(const flash_combine_args_t *a, int64_t i) {
    const int64_t offset = i * a->stride_partial * dtype_size(a->o_partial.dtype);
    flash_tensor_t partial = a->o_partial;
    if (a->o_partials == NULL)
        partial.data = (char *)a->o_partial.data + offset;
    else
        partial.data = (void *)(uintptr_t)(is_on_host(a) ? a->o_partials[i] : NULL);
    return partial;
}

/* Returns the LSE of a partial result, likewise. */
static flash_tensor_t lse_partial_at(const flash_combine_args_t *a, int64_t i) {
    const int64_t offset = i * a->lse_partial_stride * (int64_t)sizeof *a->lse_partial;
    if (a->lse_partials == NULL)
        return lse_partial_of(a, (const char *)a->lse_partial + offset);
    return lse_partial_of(a, is_on_host(a) ? a->lse_partials[i] : NULL);
}

/* Adds an output and a tensor of a partial result. They may be the same, so that each row is
 * written where it was read. */
static void add_pair(regions_t *regions, const char *name, const flash_tensor_t *tensor,
                     const tensor_shape_t *shape, const char *partial_name,
                     const flash_tensor_t *partial, const tensor_shape_t *partial_shape) {
    const bool in_place = tensor_is_same(tensor, shape, partial, partial_shape);
    const int32_t sharing = in_place ? regions->n + 1 : 0;
    if (tensor->data != NULL)
        regions_add_sharing(regions, name, tensor, shape, sharing);
    if (partial->data != NULL)
        regions_add_sharing(regions, partial_name, partial, partial_shape, sharing);
}

static flash_status_t check_apart_from_partial(const flash_combine_args_t *a, int64_t i) {
    const tensor_shape_t o = output(shape_of(a, a->o.dtype)), of_lse = output(lse_shape_of(a));
    const tensor_shape_t partial = shape_of(a, a->o_partial.dtype), lse_partial = lse_shape_of(a);
    const flash_tensor_t lse = lse_of(a), from = o_partial_at(a, i),
                         lse_from = lse_partial_at(a, i);
    regions_t regions = {.n = 0};
    add_pair(&regions, "o", &a->o, &o, "o_partial", &from, &partial);
    add_pair(&regions, "lse", &lse, &of_lse, "lse_partial", &lse_from, &lse_partial);
    return regions_check(&regions);
}

static flash_status_t check_partials(const flash_combine_args_t *a) {
    const tensor_shape_t shape = shape_of(a, a->o_partial.dtype);
    if (a->n_partials == 0 || tensor_is_empty(&shape))
        return FLASH_SUCCESS;
    FLASH_TRY(check_partial_strides(a));
    if (is_on_host(a) && a->o_partials != NULL)
        FLASH_TRY(check_listed("o_partials", a->o_partials, a->n_partials));
    if (is_on_host(a) && a->lse_partials != NULL)
        FLASH_TRY(
            check_listed("lse_partials", (const void *const *)a->lse_partials, a->n_partials));
    for (int64_t i = 0; i < a->n_partials; i++)
        FLASH_TRY(check_apart_from_partial(a, i));
    return FLASH_SUCCESS;
}

static flash_status_t check_alignments(const flash_combine_args_t *a) {
    FLASH_TRY(argument_check_alignment("o_partial.data", a->o_partial.data,
                                       dtype_size(a->o_partial.dtype)));
    FLASH_TRY(argument_check_alignment("lse_partial", a->lse_partial, sizeof *a->lse_partial));
    FLASH_TRY(argument_check_alignment("o.data", a->o.data, dtype_size(a->o.dtype)));
    FLASH_TRY(argument_check_alignment("sinks", a->sinks, sizeof *a->sinks));
    return argument_check_alignment("lse", a->lse, sizeof *a->lse);
}

/* ---- Defaults, so that readers of the copy need not know what 0 stands for ---- */

static void set_default_types(flash_combine_args_t *a) {
    if (a->o_partial.dtype == 0)
        a->o_partial.dtype = a->dtype;
    if (a->o.dtype == 0)
        a->o.dtype = a->dtype;
}

/* Returns the rows of LSE in a batch entry and in all of them. */
static flash_status_t count_rows(const flash_combine_args_t *a, int64_t *batch, int64_t *all) {
    FLASH_REQUIRE(!__builtin_mul_overflow(a->n_heads, a->seqlen_q, batch) &&
                      !__builtin_mul_overflow(a->batch, *batch, all),
                  FLASH_ERROR_INVALID_ARGUMENT,
                  "batch %" PRId64 ", n_heads %" PRId64 " and seqlen_q %" PRId64
                  " have more rows than 64 bits count",
                  a->batch, a->n_heads, a->seqlen_q);
    return FLASH_SUCCESS;
}

/* Sets contiguous strides where the caller gives none. A partial LSE may be contiguous by itself,
 * at any distance from the next. */
static flash_status_t set_default_strides(flash_combine_args_t *a) {
    int64_t batch = 0, partial = 0;
    FLASH_TRY(count_rows(a, &batch, &partial));
    if (!(a->lse_stride_batch | a->lse_stride_head | a->lse_stride_seq)) {
        a->lse_stride_batch = batch;
        a->lse_stride_head = a->seqlen_q;
        a->lse_stride_seq = 1;
    }
    if (a->lse_partial_stride_batch | a->lse_partial_stride_head | a->lse_partial_stride_seq)
        return FLASH_SUCCESS;
    a->lse_partial_stride_batch = batch;
    a->lse_partial_stride_head = a->seqlen_q;
    a->lse_partial_stride_seq = 1;
    if (a->lse_partial_stride == 0)
        a->lse_partial_stride = partial;
    return FLASH_SUCCESS;
}

flash_status_t arguments_read_combine(const flash_combine_args_t *args,
                                      flash_combine_args_t *checked) {
    FLASH_TRY(STRUCT_READ(flash_combine_args_t, checked, args));
    set_default_types(checked);
    FLASH_TRY(check_shape(checked));
    FLASH_TRY(set_default_strides(checked));
    if (checked->device != FLASH_DEVICE_CPU)
        FLASH_TRY(check_alignments(checked));
    FLASH_TRY(check_outputs(checked));
    return check_partials(checked);
}
