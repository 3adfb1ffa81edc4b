/*
 * This file reads and checks ALiBi slopes and the mask of a call.
 */
#include "arguments/bias_arguments.h"

#include "arguments/checks.h"
#include "core/status.h"
#include "core/struct_size.h"
#include "kernels/common/dtype.h"

#include <inttypes.h>

static const char SLOPES[] = "alibi_slopes", MASK[] = "mask.data", HEAD_SCALE[] = "mask.head_scale";

/* ---- ALiBi ---- */

static flash_status_t read_slopes(const flash_forward_args_t *a, flash_bias_t *bias) {
    const int64_t stride = a->alibi_stride_batch;
    FLASH_REQUIRE(stride == 0 || a->alibi_slopes != NULL, FLASH_ERROR_INVALID_ARGUMENT,
                  "alibi_stride_batch is %" PRId64 ", and alibi_slopes is NULL", stride);
    FLASH_REQUIRE(stride == 0 || stride >= a->n_heads, FLASH_ERROR_INVALID_ARGUMENT,
                  "alibi_stride_batch is %" PRId64 ": a row has %" PRId64 " slopes", stride,
                  a->n_heads);
    bias->alibi_slopes = a->alibi_slopes;
    bias->alibi_stride_batch = a->batch > 1 ? stride : 0;
    return FLASH_SUCCESS;
}

/* ---- The mask ---- */

/* Returns the name of a kind, which there is. */
static const char *kind_name(int32_t kind) {
    return kind == FLASH_MASK_ADD    ? "FLASH_MASK_ADD"
           : kind == FLASH_MASK_BITS ? "FLASH_MASK_BITS"
                                     : "FLASH_MASK_BLOCKS";
}

static flash_status_t check_blocks(const flash_mask_t *m) {
    if (m->kind != FLASH_MASK_BLOCKS) {
        FLASH_REQUIRE(m->block_q == 0 && m->block_k == 0, FLASH_ERROR_INVALID_ARGUMENT,
                      "mask.block_q is %" PRId64 " and mask.block_k %" PRId64
                      " with %s: they must be 0",
                      m->block_q, m->block_k, kind_name(m->kind));
        return FLASH_SUCCESS;
    }
    FLASH_TRY(argument_check_count("mask.block_q", m->block_q));
    return argument_check_count("mask.block_k", m->block_k);
}

static flash_status_t check_kind(const flash_mask_t *m) {
    FLASH_REQUIRE(m->kind >= FLASH_MASK_ADD && m->kind <= FLASH_MASK_BLOCKS,
                  FLASH_ERROR_INVALID_ARGUMENT, "mask.kind is %" PRId32 ": no such kind", m->kind);
    FLASH_REQUIRE((m->flags & ~(uint32_t)FLASH_MASK_LAST_KEYS) == 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "mask.flags is 0x%" PRIx32 ": only FLASH_MASK_LAST_KEYS is known", m->flags);
    if (m->kind != FLASH_MASK_ADD) {
        FLASH_REQUIRE(m->dtype == 0, FLASH_ERROR_INVALID_ARGUMENT,
                      "mask.dtype is %" PRId32 ": bits have none", m->dtype);
        FLASH_REQUIRE(m->head_scale == NULL, FLASH_ERROR_INVALID_ARGUMENT,
                      "mask.head_scale is given with %s: bits are not multiplied",
                      kind_name(m->kind));
        return FLASH_SUCCESS;
    }
    return argument_check_numbers("mask.dtype", m->dtype, "numbers");
}

static flash_status_t check_stride(const char *axis, int64_t stride) {
    FLASH_REQUIRE(stride >= 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "mask.stride_%s is %" PRId64 ": negative", axis, stride);
    return FLASH_SUCCESS;
}

/* Masks often repeat for batch entries, heads and queries, but a column that stands for all keys is
 * more likely a stride that was forgotten. */
static flash_status_t check_stride_key(const flash_mask_t *m, bool may_repeat) {
    FLASH_REQUIRE(m->stride_key == 0 || m->kind == FLASH_MASK_ADD, FLASH_ERROR_INVALID_ARGUMENT,
                  "mask.stride_key is %" PRId64 ": bits have none", m->stride_key);
    FLASH_TRY(check_stride("key", m->stride_key));
    FLASH_REQUIRE(m->stride_key > 0 || m->kind != FLASH_MASK_ADD || m->n_keys == 1 || may_repeat,
                  FLASH_ERROR_INVALID_ARGUMENT,
                  "mask.stride_key is 0 along more than one place: FLASH_FLAG_BROADCAST says that "
                  "this is meant");
    return FLASH_SUCCESS;
}

static flash_status_t check_columns(const flash_mask_t *m) {
    FLASH_TRY(argument_check_count("mask.n_keys", m->n_keys));
    FLASH_TRY(argument_check_size("mask.first_key", m->first_key));
    FLASH_REQUIRE(
        m->first_key == 0 || !(m->flags & FLASH_MASK_LAST_KEYS), FLASH_ERROR_INVALID_ARGUMENT,
        "mask.first_key is %" PRId64 " with FLASH_MASK_LAST_KEYS: it must be 0", m->first_key);
    return FLASH_SUCCESS;
}

/* Says whether the mask has rows of its own for each sequence, not for each token of a ragged Q. */
static bool has_rows_by_sequence(const flash_forward_args_t *a, int32_t kind) {
    return a->cu_seqlens_q == NULL || kind == FLASH_MASK_BLOCKS;
}

static flash_status_t check_strides(const flash_forward_args_t *a, const flash_mask_t *m) {
    if (has_rows_by_sequence(a, m->kind))
        FLASH_TRY(check_stride("batch", m->stride_batch));
    FLASH_TRY(check_stride("head", m->stride_head));
    FLASH_TRY(check_stride("query", m->stride_query));
    return check_stride_key(m, (a->flags & FLASH_FLAG_BROADCAST) != 0);
}

static void set_mask(const flash_forward_args_t *a, const flash_mask_t *m, flash_bias_t *bias) {
    const bool is_last = (m->flags & FLASH_MASK_LAST_KEYS) != 0;
    bias->mask = m->data;
    bias->stride_batch = a->batch > 1 && has_rows_by_sequence(a, m->kind) ? m->stride_batch : 0;
    bias->stride_head = a->n_heads > 1 ? m->stride_head : 0;
    bias->stride_query = a->seqlen_q > 1 || a->cu_seqlens_q != NULL ? m->stride_query : 0;
    if (m->kind == FLASH_MASK_BLOCKS)
        bias->block = (flash_mask_block_t){(int32_t)m->block_q, (int32_t)m->block_k};
    else
        bias->stride_key = m->n_keys > 1 ? m->stride_key : 0;
    bias->first_key = is_last ? -(int32_t)m->n_keys : (int32_t)m->first_key;
    bias->n_keys = (int32_t)m->n_keys;
    bias->kind = m->kind;
    bias->dtype = m->dtype;
    bias->is_last_keys = is_last;
    bias->head_scale = m->head_scale;
}

static flash_status_t read_mask(const flash_forward_args_t *a, flash_bias_t *bias) {
    flash_mask_t m;
    if (a->mask == NULL)
        return FLASH_SUCCESS;
    FLASH_TRY(STRUCT_READ(flash_mask_t, &m, a->mask));
    if (m.dtype == 0 && m.kind == FLASH_MASK_ADD)
        m.dtype = a->dtype;
    FLASH_TRY(check_kind(&m));
    FLASH_TRY(check_blocks(&m));
    FLASH_TRY(check_columns(&m));
    FLASH_TRY(check_strides(a, &m));
    set_mask(a, &m, bias);
    return FLASH_SUCCESS;
}

flash_status_t arguments_read_bias(const flash_forward_args_t *checked, flash_params_t *params) {
    FLASH_TRY(read_slopes(checked, &params->bias));
    return read_mask(checked, &params->bias);
}

bool arguments_have_bias(const flash_params_t *params) {
    return params->bias.alibi_slopes != NULL || params->bias.kind != 0;
}

/* ---- The arrays ---- */

static int64_t element_bytes(const flash_bias_t *bias) {
    return bias->kind == FLASH_MASK_ADD ? dtype_size(bias->dtype) : (int64_t)sizeof(uint32_t);
}

/* Slopes are treated as a tensor of one row per batch entry. */
static flash_tensor_t slopes_of(const flash_bias_t *bias) {
    return (flash_tensor_t){.data = (void *)(uintptr_t)bias->alibi_slopes,
                            .stride_batch = bias->alibi_stride_batch};
}

static tensor_shape_t slopes_shape(const flash_params_t *p) {
    return (tensor_shape_t){.batch = p->bias.alibi_slopes == NULL ? 0 : p->batch,
                            .seq = 1,
                            .longest_seq = 1,
                            .heads = 1,
                            .d_head = p->n_heads,
                            .element_size = sizeof *p->bias.alibi_slopes,
                            .may_repeat = true};
}

static flash_tensor_t mask_of(const flash_bias_t *bias) {
    return (flash_tensor_t){.data = (void *)(uintptr_t)bias->mask,
                            .stride_batch = bias->stride_batch,
                            .stride_seq = bias->stride_query,
                            .stride_head = bias->stride_head};
}

static int64_t divide_up(int64_t n, int64_t by) {
    return (n + by - 1) / by;
}

/* Returns the words or numbers that a row has side by side: its words of bits, or one number. */
static int64_t row_reach(const flash_bias_t *bias) {
    const int64_t n = bias->n_keys;
    return bias->kind == FLASH_MASK_BITS     ? divide_up(n, 32)
           : bias->kind == FLASH_MASK_BLOCKS ? divide_up(divide_up(n, bias->block.keys), 32)
                                             : 1;
}

/* A number stands for several, stride_key apart. */
static int64_t stride_key_of(const flash_bias_t *bias) {
    return bias->kind == FLASH_MASK_ADD ? bias->stride_key : 0;
}

static tensor_shape_t mask_shape(const flash_params_t *p, int64_t total_q) {
    const flash_bias_t *bias = &p->bias;
    tensor_shape_t shape = {.batch = bias->kind == 0   ? 0
                                     : p->cu_seqlens_q ? 1
                                                       : p->batch,
                            .seq = total_q,
                            .longest_seq = p->seqlen_q,
                            .heads = p->n_heads,
                            .d_head = row_reach(bias),
                            .element_size = bias->kind == 0 ? 1 : element_bytes(bias),
                            .may_repeat = true};
    if (bias->kind == FLASH_MASK_BLOCKS) {
        shape.batch = p->batch;
        shape.seq = shape.longest_seq = divide_up(p->seqlen_q, bias->block.queries);
    }
    return shape;
}

flash_status_t arguments_check_bias(const flash_params_t *params, int64_t total_q,
                                    regions_t *regions) {
    const flash_bias_t *bias = &params->bias;
    const flash_tensor_t slopes = slopes_of(bias), mask = mask_of(bias);
    const tensor_shape_t of_slopes = slopes_shape(params);
    const tensor_repeat_t columns = {"mask.stride_key", stride_key_of(bias), bias->n_keys};
    tensor_shape_t of_mask = mask_shape(params, total_q);
    if (!arguments_have_bias(params))
        return FLASH_SUCCESS;
    FLASH_TRY(tensor_check(SLOPES, &slopes, &of_slopes));
    FLASH_TRY(tensor_check_repeat("mask", &mask, &of_mask, &columns));
    if (!tensor_is_empty(&of_mask)) /* the product was found not to overflow */
        of_mask.d_head += stride_key_of(bias) * ((int64_t)bias->n_keys - 1);
    regions_add(regions, SLOPES, &slopes, &of_slopes);
    regions_add(regions, MASK, &mask, &of_mask);
    regions_add_array(regions, HEAD_SCALE, bias->head_scale, params->n_heads,
                      sizeof *bias->head_scale);
    return FLASH_SUCCESS;
}

flash_status_t arguments_check_bias_alignments(const flash_params_t *params) {
    const flash_bias_t *bias = &params->bias;
    FLASH_TRY(argument_check_alignment(SLOPES, bias->alibi_slopes, sizeof *bias->alibi_slopes));
    FLASH_TRY(argument_check_alignment(HEAD_SCALE, bias->head_scale, sizeof *bias->head_scale));
    return bias->mask == NULL ? FLASH_SUCCESS
                              : argument_check_alignment(MASK, bias->mask, element_bytes(bias));
}
