/*
 * This file reads and checks the rotary embedding of flash_kv_append().
 */
#include "arguments/append_rotary.h"

#include "arguments/checks.h"
#include "core/status.h"
#include "core/struct_size.h"
#include "kernels/common/dtype.h"

#include <inttypes.h>
#include <stdbool.h>

static flash_status_t check_dim(const flash_rotary_t *r, int64_t d_head) {
    FLASH_REQUIRE(r->rotary_dim >= 2 && r->rotary_dim % 2 == 0 && r->rotary_dim <= d_head,
                  FLASH_ERROR_INVALID_ARGUMENT,
                  "rotary.rotary_dim is %" PRId64 ": not an even number within 2 ... %" PRId64
                  ", which is d_head",
                  r->rotary_dim, d_head);
    return FLASH_SUCCESS;
}

static flash_status_t check_struct(const flash_rotary_t *r) {
    const uint32_t known = FLASH_ROTARY_INTERLEAVED | FLASH_ROTARY_Q_AT_START;
    FLASH_REQUIRE((r->flags & ~known) == 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "rotary.flags is 0x%" PRIx32 ": the known ones are 0x%" PRIx32, r->flags, known);
    FLASH_REQUIRE(r->reserved32 == 0, FLASH_ERROR_UNSUPPORTED, "rotary.reserved32 is not zero");
    FLASH_TRY(argument_check_numbers("rotary.dtype", r->dtype, "cosines and sines"));
    return argument_check_count("rotary.n_positions", r->n_positions);
}

static flash_status_t check_table(const char *name, const void *table, const flash_rotary_t *r) {
    int64_t elements = 0, bytes = 0;
    FLASH_REQUIRE(table != NULL, FLASH_ERROR_INVALID_ARGUMENT, "%s is NULL", name);
    FLASH_REQUIRE(r->stride_position >= r->rotary_dim / 2 || r->n_positions == 1,
                  FLASH_ERROR_INVALID_ARGUMENT,
                  "rotary.stride_position is %" PRId64 ": a row has %" PRId64 " elements",
                  r->stride_position, r->rotary_dim / 2);
    FLASH_REQUIRE(!__builtin_mul_overflow(r->stride_position, r->n_positions - 1, &elements) &&
                      !__builtin_add_overflow(elements, r->rotary_dim / 2, &elements) &&
                      !__builtin_mul_overflow(elements, (int64_t)dtype_size(r->dtype), &bytes),
                  FLASH_ERROR_INVALID_ARGUMENT,
                  "%s overflows 64-bit offsets: stride_position %" PRId64 ", n_positions %" PRId64,
                  name, r->stride_position, r->n_positions);
    return FLASH_SUCCESS;
}

static flash_status_t check_positions(const flash_rotary_t *r, const append_params_t *p) {
    const int64_t n_new = p->tokens_new.total, n_q = p->tokens_q.total;
    FLASH_REQUIRE(r->positions == NULL || r->start == NULL, FLASH_ERROR_INVALID_ARGUMENT,
                  "rotary.positions and rotary.start are given: one of them says where tokens are");
    FLASH_REQUIRE(r->positions == NULL || n_new == 0 || n_q == 0 || n_new == n_q,
                  FLASH_ERROR_INVALID_ARGUMENT,
                  "rotary.positions is given, and k_new has %" PRId64 " tokens, but q %" PRId64,
                  n_new, n_q);
    FLASH_REQUIRE(r->positions == NULL || !(r->flags & FLASH_ROTARY_Q_AT_START),
                  FLASH_ERROR_INVALID_ARGUMENT,
                  "rotary.flags has FLASH_ROTARY_Q_AT_START, and rotary.positions is given");
    return FLASH_SUCCESS;
}

static flash_status_t check_alignments(const flash_rotary_t *r) {
    FLASH_TRY(argument_check_alignment("rotary.cos", r->cos, dtype_size(r->dtype)));
    FLASH_TRY(argument_check_alignment("rotary.sin", r->sin, dtype_size(r->dtype)));
    FLASH_TRY(argument_check_alignment("rotary.positions", r->positions, sizeof *r->positions));
    return argument_check_alignment("rotary.start", r->start, sizeof *r->start);
}

flash_status_t arguments_read_rotary(const flash_kv_append_args_t *checked,
                                     append_params_t *params) {
    flash_rotary_t r;
    if (checked->rotary == NULL)
        return FLASH_SUCCESS;
    FLASH_TRY(STRUCT_READ(flash_rotary_t, &r, checked->rotary));
    if (r.dtype == 0)
        r.dtype = checked->dtype;
    FLASH_TRY(check_struct(&r));
    FLASH_TRY(check_dim(&r, checked->d_head));
    FLASH_TRY(check_table("rotary.cos", r.cos, &r));
    FLASH_TRY(check_table("rotary.sin", r.sin, &r));
    FLASH_TRY(check_positions(&r, params));
    if (checked->device != FLASH_DEVICE_CPU)
        FLASH_TRY(check_alignments(&r));
    const int32_t *start = r.start ? r.start : checked->seqused_k;
    const bool has_tokens = params->tokens_new.total > 0 || params->tokens_q.total > 0;
    FLASH_REQUIRE(r.positions != NULL || start != NULL || !has_tokens, FLASH_ERROR_INVALID_ARGUMENT,
                  "rotary has neither positions nor start, and seqused_k is NULL");
    params->rotary = (append_rotary_t){.cos = r.cos,
                                       .sin = r.sin,
                                       .positions = r.positions,
                                       .start = start,
                                       .stride_position = r.n_positions > 1 ? r.stride_position : 0,
                                       .n_positions = (int32_t)r.n_positions,
                                       .n_pairs = (int32_t)(r.rotary_dim / 2),
                                       .dtype = r.dtype,
                                       .is_interleaved = (r.flags & FLASH_ROTARY_INTERLEAVED) != 0,
                                       .q_at_start = (r.flags & FLASH_ROTARY_Q_AT_START) != 0};
    return FLASH_SUCCESS;
}

/* The tables are rows of angles, a stride apart. */
void arguments_add_rotary(const append_params_t *params, regions_t *regions) {
    const append_rotary_t *r = &params->rotary;
    const tensor_shape_t shape = {.batch = r->n_pairs == 0 ? 0 : 1,
                                  .seq = r->n_positions,
                                  .longest_seq = r->n_positions,
                                  .heads = 1,
                                  .d_head = r->n_pairs,
                                  .element_size = dtype_size(r->dtype)};
    flash_tensor_t table = {.data = (void *)(uintptr_t)r->cos, .stride_seq = r->stride_position};
    const int64_t n_new = params->tokens_new.total, n_q = params->tokens_q.total;
    regions_add(regions, "rotary.cos", &table, &shape);
    table.data = (void *)(uintptr_t)r->sin;
    regions_add(regions, "rotary.sin", &table, &shape);
    regions_add_array(regions, "rotary.positions", r->positions, n_new > n_q ? n_new : n_q,
                      sizeof *r->positions);
    if (r->start != params->seqused_k)
        regions_add_array(regions, "rotary.start", r->start, params->batch, sizeof *r->start);
}
