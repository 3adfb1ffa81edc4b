/*
 * The arguments of flash_quantise() are validated here.
 */
#include "arguments/quantise_arguments.h"

#include "arguments/checks.h"
#include "arguments/lengths.h"
#include "arguments/regions.h"
#include "arguments/tensor.h"
#include "core/int64.h"
#include "core/status.h"
#include "core/struct_size.h"
#include "kernels/common/dtype.h"

#include <inttypes.h>

enum {
    ALL_FLAGS = FLASH_FLAG_BROADCAST | FLASH_QUANTISE_TOKENS | FLASH_QUANTISE_MINUS_MEAN |
                FLASH_QUANTISE_HADAMARD
};

static bool has_mean(const flash_quantise_args_t *a) {
    return (a->flags & FLASH_QUANTISE_MINUS_MEAN) != 0;
}

static bool is_by_token(const flash_quantise_args_t *a) {
    return (a->flags & FLASH_QUANTISE_TOKENS) != 0;
}

/* ---- Sizes, types and flags ---- */

static flash_status_t check_types(const flash_quantise_args_t *a) {
    FLASH_TRY(argument_check_numbers("x.dtype", a->x.dtype, "elements to quantise"));
    FLASH_REQUIRE(a->codes.dtype == FLASH_DTYPE_E4M3, FLASH_ERROR_UNSUPPORTED,
                  "codes.dtype is %" PRId32 ": not FLASH_DTYPE_E4M3 (%d)", a->codes.dtype,
                  FLASH_DTYPE_E4M3);
    FLASH_REQUIRE((a->flags & ~(uint32_t)ALL_FLAGS) == 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "flags is 0x%" PRIx32 ": unknown bits 0x%" PRIx32, a->flags,
                  a->flags & ~(uint32_t)ALL_FLAGS);
    return argument_check_reserved("flash_quantise_args_t", a->reserved32, a->reserved,
                                   sizeof a->reserved / sizeof a->reserved[0]);
}

static flash_status_t check_heads(const flash_quantise_args_t *a) {
    FLASH_TRY(argument_check_count("n_heads", a->n_heads));
    FLASH_TRY(argument_check_count("n_scales", a->n_scales));
    FLASH_REQUIRE(a->n_heads % a->n_scales == 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "n_heads is %" PRId64 ": not a multiple of n_scales, %" PRId64, a->n_heads,
                  a->n_scales);
    FLASH_REQUIRE(!is_by_token(a) || a->n_scales == a->n_heads, FLASH_ERROR_INVALID_ARGUMENT,
                  "n_scales is %" PRId64 " and n_heads %" PRId64
                  ": with FLASH_QUANTISE_TOKENS each head has its own",
                  a->n_scales, a->n_heads);
    return FLASH_SUCCESS;
}

static flash_status_t check_shape(const flash_quantise_args_t *a) {
    FLASH_TRY(check_types(a));
    FLASH_TRY(argument_check_size("batch", a->batch));
    FLASH_TRY(argument_check_size("seqlen", a->seqlen));
    FLASH_TRY(argument_check_count("d_head", a->d_head));
    FLASH_TRY(check_heads(a));
    FLASH_REQUIRE(has_mean(a) == (a->mean != NULL), FLASH_ERROR_INVALID_ARGUMENT,
                  "mean is %p, and flags 0x%" PRIx32
                  ": it goes with FLASH_QUANTISE_MINUS_MEAN alone",
                  (void *)a->mean, a->flags);
    return FLASH_SUCCESS;
}

/* ---- Arrays ---- */

static flash_status_t count(const char *name, int64_t a, int64_t b, int64_t c, int64_t *n) {
    FLASH_REQUIRE(!__builtin_mul_overflow(a, b, n) && !__builtin_mul_overflow(*n, c, n) &&
                      *n <= INT64_MAX / (int64_t)sizeof(float),
                  FLASH_ERROR_INVALID_ARGUMENT,
                  "%s overflows 64-bit offsets: %" PRId64 " x %" PRId64 " x %" PRId64, name, a, b,
                  c);
    return FLASH_SUCCESS;
}

static flash_status_t check_arrays(const flash_quantise_args_t *a, int64_t n_tokens,
                                   regions_t *regions) {
    int64_t n_scales = 0, n_means = 0;
    FLASH_TRY(count("scale", is_by_token(a) ? n_tokens : a->batch, a->n_scales, 1, &n_scales));
    FLASH_TRY(count("mean", a->batch, a->n_heads, a->d_head, &n_means));
    FLASH_REQUIRE(a->scale != NULL || n_scales == 0, FLASH_ERROR_INVALID_ARGUMENT, "scale is NULL");
    regions_add_output_array(regions, "scale", a->scale, n_scales, sizeof *a->scale);
    regions_add_output_array(regions, "mean", a->mean, n_means, sizeof *a->mean);
    if (a->cu_seqlens)
        regions_add_array(regions, "cu_seqlens", a->cu_seqlens, a->batch + 1,
                          sizeof *a->cu_seqlens);
    return FLASH_SUCCESS;
}

static flash_status_t check_tensors(const flash_quantise_args_t *a, int64_t n_tokens) {
    const bool ragged = a->cu_seqlens != NULL;
    tensor_shape_t x = {.batch = ragged ? 1 : a->batch,
                        .seq = ragged ? n_tokens : a->seqlen,
                        .longest_seq = a->seqlen,
                        .heads = a->n_heads,
                        .d_head = a->d_head,
                        .element_size = dtype_size(a->x.dtype),
                        .may_repeat = (a->flags & FLASH_FLAG_BROADCAST) != 0};
    tensor_shape_t codes = x;
    regions_t regions = {.n = 0};
    codes.element_size = dtype_size(a->codes.dtype);
    codes.is_output = true;
    FLASH_TRY(tensor_check("x", &a->x, &x));
    FLASH_TRY(tensor_check("codes", &a->codes, &codes));
    FLASH_TRY(tensor_check_output("codes", &a->codes, &codes));
    regions_add(&regions, "x", &a->x, &x);
    regions_add(&regions, "codes", &a->codes, &codes);
    FLASH_TRY(check_arrays(a, n_tokens, &regions));
    return regions_check(&regions);
}

/* ---- Alignment, for CUDA devices ---- */

static flash_status_t check_alignments(const flash_quantise_args_t *a) {
    FLASH_TRY(argument_check_alignment("x.data", a->x.data, dtype_size(a->x.dtype)));
    FLASH_TRY(argument_check_alignment("scale", a->scale, sizeof *a->scale));
    FLASH_TRY(argument_check_alignment("mean", a->mean, sizeof *a->mean));
    return argument_check_alignment("cu_seqlens", a->cu_seqlens, sizeof *a->cu_seqlens);
}

/* ---- Tokens ---- */

/* Counts the tokens of the batch. Of a ragged one, what lies in a device's memory says how many:
 * there may be one. */
static flash_status_t count_tokens(const flash_quantise_args_t *a, int64_t *n_tokens) {
    *n_tokens = a->batch * a->seqlen;
    if (a->cu_seqlens == NULL)
        return FLASH_SUCCESS;
    *n_tokens = min64(*n_tokens, 1);
    if (a->device != FLASH_DEVICE_CPU)
        return FLASH_SUCCESS;
    return lengths_check_cu_seqlens("cu_seqlens", a->cu_seqlens, (int32_t)a->batch,
                                    (int32_t)a->seqlen, n_tokens);
}

/* ---- Defaults ---- */

static void set_defaults(flash_quantise_args_t *a) {
    if (a->codes.dtype == 0)
        a->codes.dtype = FLASH_DTYPE_E4M3;
    if (a->n_scales == 0)
        a->n_scales = a->n_heads;
    if (a->cu_seqlens)
        a->x.stride_batch = a->codes.stride_batch = 0;
}

flash_status_t arguments_read_quantise(const flash_quantise_args_t *args,
                                       flash_quantise_args_t *checked, int64_t *n_tokens) {
    FLASH_TRY(STRUCT_READ(flash_quantise_args_t, checked, args));
    set_defaults(checked);
    FLASH_TRY(check_shape(checked));
    FLASH_TRY(count_tokens(checked, n_tokens));
    if (checked->device != FLASH_DEVICE_CPU)
        FLASH_TRY(check_alignments(checked));
    return check_tensors(checked, *n_tokens);
}
