/*
 * This file reads and checks the scales of K, V and Q of e4m3.
 */
#include "arguments/quant.h"

#include "arguments/checks.h"
#include "core/status.h"
#include "core/struct_size.h"
#include "kernels/common/scale.h"

#include <inttypes.h>

static const char K_SCALE[] = "quant.k_scale", V_SCALE[] = "quant.v_scale",
                  Q_SCALE[] = "quant.q_scale", Q_TOKEN_SCALE[] = "quant.q_token_scale";

/* ---- The struct ---- */

static flash_status_t check_stride(const char *name, const char *axis, const float *data,
                                   int64_t stride) {
    FLASH_REQUIRE(stride >= 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s_stride_%s is %" PRId64 ": negative", name, axis, stride);
    FLASH_REQUIRE(data != NULL || stride == 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s_stride_%s is %" PRId64 ", and %s is NULL", name, axis, stride, name);
    return FLASH_SUCCESS;
}

static flash_status_t check_head_strides(const char *name, const flash_scale_t *scale) {
    FLASH_TRY(check_stride(name, "batch", scale->data, scale->stride_batch));
    return check_stride(name, "head", scale->data, scale->stride_head);
}

static flash_status_t check_scale(const char *name, const flash_scale_t *scale, int32_t dtype) {
    FLASH_REQUIRE(scale->data == NULL || dtype == FLASH_DTYPE_E4M3, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s is given, and k.dtype is %" PRId32
                  ": K and V of FLASH_DTYPE_E4M3 (%d) alone have scales",
                  name, dtype, FLASH_DTYPE_E4M3);
    return check_head_strides(name, scale);
}

static flash_status_t check_scaled_query(const char *name, const float *data, int32_t dtype) {
    FLASH_REQUIRE(data == NULL || dtype == FLASH_DTYPE_E4M3, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s is given, and q.dtype is %" PRId32
                  ": Q of FLASH_DTYPE_E4M3 (%d) alone has scales",
                  name, dtype, FLASH_DTYPE_E4M3);
    return FLASH_SUCCESS;
}

static flash_status_t check_q_scale(const flash_q_scale_t *scale, int32_t dtype) {
    const flash_strides_t *stride = &scale->token_stride;
    FLASH_TRY(check_scaled_query(Q_SCALE, scale->of_head.data, dtype));
    FLASH_TRY(check_head_strides(Q_SCALE, &scale->of_head));
    FLASH_TRY(check_scaled_query(Q_TOKEN_SCALE, scale->of_token, dtype));
    FLASH_TRY(check_stride(Q_TOKEN_SCALE, "batch", scale->of_token, stride->batch));
    FLASH_TRY(check_stride(Q_TOKEN_SCALE, "seq", scale->of_token, stride->seq));
    return check_stride(Q_TOKEN_SCALE, "head", scale->of_token, stride->head);
}

static bool has_page_scales(const flash_forward_args_t *checked) {
    return (checked->flags & FLASH_FLAG_PAGE_SCALES) != 0;
}

static flash_status_t check_page_scales(const flash_forward_args_t *checked) {
    if (!has_page_scales(checked))
        return FLASH_SUCCESS;
    FLASH_REQUIRE(checked->paging != NULL, FLASH_ERROR_INVALID_ARGUMENT,
                  "flags has FLASH_FLAG_PAGE_SCALES, and paging is NULL: there are no pages");
    FLASH_REQUIRE(checked->quant != NULL, FLASH_ERROR_INVALID_ARGUMENT,
                  "flags has FLASH_FLAG_PAGE_SCALES, and quant is NULL: there are no scales");
    return FLASH_SUCCESS;
}

flash_status_t arguments_check_device_of_page_scales(const flash_forward_args_t *checked) {
    FLASH_REQUIRE(!has_page_scales(checked) || checked->device == FLASH_DEVICE_CPU,
                  FLASH_ERROR_UNSUPPORTED,
                  "flags has FLASH_FLAG_PAGE_SCALES, and device is 0x%x: only kernels for the CPU "
                  "take scales of pages",
                  (unsigned)checked->device);
    return FLASH_SUCCESS;
}

/* One page has a stride, too, which says that it is one. */
static void set_page_strides(flash_scale_t *scale) {
    if (scale->data != NULL)
        scale->stride_batch = flash_page_scale_stride(scale->stride_batch);
}

static void drop_unused_strides(const flash_forward_args_t *checked, flash_scale_t *scale) {
    if (checked->batch == 1 && !has_page_scales(checked))
        scale->stride_batch = 0;
    if (checked->n_heads_kv == 1)
        scale->stride_head = 0;
}

/* A ragged Q has no stride of batch entries. */
static flash_q_scale_t q_scale_of(const flash_quant_t *g, bool is_ragged) {
    return (flash_q_scale_t){
        .of_head = {g->q_scale, g->q_scale_stride_batch, g->q_scale_stride_head},
        .of_token = g->q_token_scale,
        .token_stride = {is_ragged ? 0 : g->q_token_scale_stride_batch, g->q_token_scale_stride_seq,
                         g->q_token_scale_stride_head}};
}

flash_status_t arguments_read_quant(const flash_forward_args_t *checked, flash_params_t *params) {
    flash_quant_t g;
    FLASH_TRY(check_page_scales(checked));
    if (checked->quant == NULL)
        return FLASH_SUCCESS;
    FLASH_TRY(STRUCT_READ(flash_quant_t, &g, checked->quant));
    FLASH_TRY(argument_check_reserved("quant", g.reserved32, g.reserved,
                                      sizeof g.reserved / sizeof g.reserved[0]));
    params->k_scale = (flash_scale_t){g.k_scale, g.k_scale_stride_batch, g.k_scale_stride_head};
    params->v_scale = (flash_scale_t){g.v_scale, g.v_scale_stride_batch, g.v_scale_stride_head};
    FLASH_TRY(check_scale(K_SCALE, &params->k_scale, checked->k.dtype));
    FLASH_TRY(check_scale(V_SCALE, &params->v_scale, checked->k.dtype));
    drop_unused_strides(checked, &params->k_scale);
    drop_unused_strides(checked, &params->v_scale);
    if (has_page_scales(checked)) {
        set_page_strides(&params->k_scale);
        set_page_strides(&params->v_scale);
    }
    params->q_scale = q_scale_of(&g, checked->cu_seqlens_q != NULL);
    FLASH_TRY(check_q_scale(&params->q_scale, checked->q.dtype));
    drop_unused_strides(checked, &params->q_scale.of_head);
    return FLASH_SUCCESS;
}

/* ---- The arrays ---- */

/* Scales are treated as a tensor whose rows have one element. */
static flash_tensor_t tensor_of(const flash_scale_t *scale) {
    const int64_t stride = scale->stride_batch;
    return (flash_tensor_t){.data = (void *)scale->data,
                            .stride_batch = stride < 0 ? flash_page_scale_stride(stride) : stride,
                            .stride_head = scale->stride_head};
}

/* A scale that is not given is an empty tensor. */
static tensor_shape_t shape_of(const flash_params_t *p, const flash_scale_t *scale) {
    const int32_t n = flash_has_page_scales(scale) ? p->pages.n_pages : p->batch;
    return (tensor_shape_t){.batch = scale->data == NULL ? 0 : n,
                            .seq = 1,
                            .longest_seq = 1,
                            .heads = p->n_heads_kv,
                            .d_head = 1,
                            .element_size = sizeof *scale->data,
                            .may_repeat = true};
}

static flash_status_t check_one(const char *name, const flash_params_t *p,
                                const flash_scale_t *scale, regions_t *regions) {
    const flash_tensor_t tensor = tensor_of(scale);
    const tensor_shape_t shape = shape_of(p, scale);
    FLASH_TRY(tensor_check(name, &tensor, &shape));
    regions_add(regions, name, &tensor, &shape);
    return FLASH_SUCCESS;
}

flash_status_t arguments_check_scales(const flash_params_t *params, regions_t *regions) {
    FLASH_TRY(check_one(K_SCALE, params, &params->k_scale, regions));
    return check_one(V_SCALE, params, &params->v_scale, regions);
}

flash_status_t arguments_check_q_scales(const flash_params_t *params, const tensor_shape_t *q,
                                        regions_t *regions) {
    const flash_q_scale_t *scale = &params->q_scale;
    const flash_tensor_t tensor = tensor_of_rows(scale->of_token, &scale->token_stride, q);
    tensor_shape_t shape = tensor_shape_of_rows(q);
    FLASH_TRY(check_one(Q_SCALE, params, &scale->of_head, regions));
    if (scale->of_token == NULL)
        return FLASH_SUCCESS;
    shape.may_repeat = true;
    FLASH_TRY(tensor_check(Q_TOKEN_SCALE, &tensor, &shape));
    regions_add(regions, Q_TOKEN_SCALE, &tensor, &shape);
    return FLASH_SUCCESS;
}

flash_status_t arguments_check_scale_alignments(const flash_params_t *params) {
    const int64_t size = sizeof *params->k_scale.data;
    FLASH_TRY(argument_check_alignment(K_SCALE, params->k_scale.data, size));
    FLASH_TRY(argument_check_alignment(V_SCALE, params->v_scale.data, size));
    FLASH_TRY(argument_check_alignment(Q_SCALE, params->q_scale.of_head.data, size));
    return argument_check_alignment(Q_TOKEN_SCALE, params->q_scale.of_token, size);
}
