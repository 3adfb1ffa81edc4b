/*
 * This file makes flash_forward_args_t of buffers and attributes. Sizes are those of the buffers.
 */
#include "xla/call.h"

#include "core/status.h"
#include "xla/shape.h"

#include <stdbool.h>

static bool is_given(const call_t *call, enum operand operand) {
    return call->operands.of[operand] != NULL;
}

static bool is_paged(const call_t *call) {
    return is_given(call, OPERAND_PAGE_TABLE) || is_given(call, OPERAND_V_PAGE_TABLE) ||
           is_given(call, OPERAND_PAGE_INDPTR) || is_given(call, OPERAND_PAGE_ROWS);
}

/* Beside pages cu_seqlens_k only has the lengths. */
static bool has_ragged_keys(const call_t *call) {
    return is_given(call, OPERAND_CU_SEQLENS_K) && !is_paged(call);
}

/* ---- Types of K and V ---- */

/* Returns the bytes of a quantised block; 0 for a type that has none. */
static int64_t block_bytes(int32_t dtype) {
    return dtype == FLASH_DTYPE_Q8_0   ? FLASH_Q8_0_BYTES
           : dtype == FLASH_DTYPE_Q4_0 ? FLASH_Q4_0_BYTES
                                       : 0;
}

/* Returns the elements of a row of so many columns. */
static int64_t row_elements(int32_t dtype, int64_t columns) {
    const int64_t block = block_bytes(dtype);
    return dtype == FLASH_DTYPE_LATENT_E4M3 ? FLASH_LATENT_TOKEN_BYTES
           : block != 0                     ? columns / FLASH_QUANT_BLOCK * block
                                            : columns;
}

/* Sets the type of K or V: that of its elements, or what an attribute says of its bytes. */
static flash_status_t set_key_dtype(const call_t *call, enum operand operand, int64_t named,
                                    int32_t *dtype) {
    const XLA_FFI_Buffer *buffer = call->operands.of[operand];
    const bool is_bytes = buffer->dtype == XLA_FFI_DataType_U8;
    const bool is_name =
        named == FLASH_DTYPE_LATENT_E4M3 || named == FLASH_DTYPE_Q8_0 || named == FLASH_DTYPE_Q4_0;
    FLASH_REQUIRE(is_bytes ? is_name : named == 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s has elements of XLA's type %d, and the attribute %s_dtype is %lld",
                  operand_name(operand), (int)buffer->dtype, operand_name(operand),
                  (long long)named);
    *dtype = is_bytes ? (int32_t)named : buffer_dtype(buffer);
    return FLASH_SUCCESS;
}

/* Says whether V is K's first columns. */
static bool v_is_k(const call_t *call) {
    return call->attributes.v_columns != 0;
}

/* Returns the columns of a row of V. */
static int64_t columns_of_v(const call_t *call) {
    const int64_t elements = buffer_length(call->operands.of[OPERAND_V], -1);
    const int64_t block = block_bytes(call->args.v.dtype);
    if (v_is_k(call))
        return call->attributes.v_columns;
    return block != 0 ? elements / block * FLASH_QUANT_BLOCK : elements;
}

/* Returns the length of the last axis of the operand v. */
static int64_t elements_of_v(const call_t *call) {
    const flash_forward_args_t *args = &call->args;
    return row_elements(args->v.dtype, v_is_k(call) ? args->d_head : args->d_head_v);
}

/* ---- Q, K, V and the results ---- */

static flash_tensor_t tensor(const XLA_FFI_Buffer *buffer) {
    const int64_t d_head = buffer_length(buffer, -1), n_heads = buffer_length(buffer, -2);
    flash_tensor_t dense =
        flash_tensor_bshd(buffer->data, buffer_length(buffer, -3), n_heads, d_head);
    dense.dtype = buffer_dtype(buffer);
    return dense;
}

static int64_t batch_of(const call_t *call) {
    const XLA_FFI_Buffer *ends = call->operands.of[OPERAND_CU_SEQLENS_Q];
    return ends != NULL ? buffer_length(ends, 0) - 1
                        : buffer_length(call->operands.of[OPERAND_Q], 0);
}

/* Fills sizes. Ragged and paged sequences are as long as the attributes say at most. */
static void set_sizes(call_t *call) {
    const XLA_FFI_Buffer *q = call->operands.of[OPERAND_Q], *k = call->operands.of[OPERAND_K];
    const bool ragged_q = is_given(call, OPERAND_CU_SEQLENS_Q);
    const bool bounded_k = is_given(call, OPERAND_CU_SEQLENS_K) || is_paged(call);
    flash_forward_args_t *args = &call->args;
    args->batch = batch_of(call);
    args->seqlen_q = ragged_q ? call->attributes.seqlen_q : buffer_length(q, -3);
    args->seqlen_k = bounded_k ? call->attributes.seqlen_k : buffer_length(k, -3);
    args->n_heads = buffer_length(q, -2);
    args->n_heads_kv = buffer_length(k, -2);
    args->d_head = buffer_length(q, -1);
    args->d_head_v = columns_of_v(call);
}

static flash_status_t check_keys(const call_t *call) {
    const XLA_FFI_Buffer *k = call->operands.of[OPERAND_K], *v = call->operands.of[OPERAND_V];
    const flash_forward_args_t *args = &call->args;
    const int64_t tokens = buffer_length(k, -3), entries = buffer_length(k, 0);
    const int64_t of_k = row_elements(args->k.dtype, args->d_head), of_v = elements_of_v(call);
    if (has_ragged_keys(call)) {
        FLASH_TRY(SHAPE_CHECK(k, "k", tokens, args->n_heads_kv, of_k));
        return SHAPE_CHECK(v, "v", tokens, args->n_heads_kv, of_v);
    }
    const int64_t batch = is_paged(call) ? entries : args->batch;
    FLASH_TRY(SHAPE_CHECK(k, "k", batch, tokens, args->n_heads_kv, of_k));
    return SHAPE_CHECK(v, "v", batch, tokens, args->n_heads_kv, of_v);
}

static flash_status_t check_ragged_rows(const call_t *call) {
    const operands_t *operands = &call->operands;
    const flash_forward_args_t *args = &call->args;
    const int64_t tokens = buffer_length(operands->of[OPERAND_Q], -3);
    FLASH_TRY(SHAPE_CHECK(operands->of[OPERAND_Q], "q", tokens, args->n_heads, args->d_head));
    FLASH_TRY(SHAPE_CHECK(operands->o, "O", tokens, args->n_heads, args->d_head_v));
    return operands->lse == NULL ? FLASH_SUCCESS
                                 : SHAPE_CHECK(operands->lse, "LSE", args->n_heads, tokens);
}

static flash_status_t check_rows(const call_t *call) {
    const operands_t *operands = &call->operands;
    const flash_forward_args_t *args = &call->args;
    const int64_t batch = args->batch, seqlen = args->seqlen_q, n_heads = args->n_heads;
    if (is_given(call, OPERAND_CU_SEQLENS_Q))
        return check_ragged_rows(call);
    FLASH_TRY(SHAPE_CHECK(operands->of[OPERAND_Q], "q", batch, seqlen, n_heads, args->d_head));
    FLASH_TRY(SHAPE_CHECK(operands->o, "O", batch, seqlen, n_heads, args->d_head_v));
    return operands->lse == NULL ? FLASH_SUCCESS
                                 : SHAPE_CHECK(operands->lse, "LSE", batch, n_heads, seqlen);
}

static flash_status_t check_v_columns(const call_t *call) {
    const flash_forward_args_t *args = &call->args;
    const int64_t columns = call->attributes.v_columns;
    FLASH_REQUIRE(columns >= 0 && columns <= args->d_head, FLASH_ERROR_INVALID_ARGUMENT,
                  "v_columns is %lld: not 0 to %lld, those of k", (long long)columns,
                  (long long)args->d_head);
    FLASH_REQUIRE(
        columns != 0 || args->v.dtype != FLASH_DTYPE_LATENT_E4M3, FLASH_ERROR_INVALID_ARGUMENT,
        "v_dtype is %d and v_columns 0: latent tokens are k and v at once", args->v.dtype);
    FLASH_REQUIRE(columns == 0 || args->k.dtype == args->v.dtype, FLASH_ERROR_INVALID_ARGUMENT,
                  "v_columns is %lld, k.dtype %d and v.dtype %d: v is k then", (long long)columns,
                  args->k.dtype, args->v.dtype);
    return FLASH_SUCCESS;
}

static flash_status_t set_tensors(call_t *call) {
    const operands_t *operands = &call->operands;
    flash_forward_args_t *args = &call->args;
    int32_t of_k, of_v;
    FLASH_TRY(set_key_dtype(call, OPERAND_K, call->attributes.k_dtype, &of_k));
    FLASH_TRY(set_key_dtype(call, OPERAND_V, call->attributes.v_dtype, &of_v));
    args->k.dtype = of_k;
    args->v.dtype = of_v;
    set_sizes(call);
    FLASH_TRY(check_v_columns(call));
    FLASH_REQUIRE(args->batch >= 0, FLASH_ERROR_INVALID_ARGUMENT,
                  "cu_seqlens_q is empty: batch + 1 values, from 0 on");
    FLASH_TRY(check_rows(call));
    FLASH_TRY(check_keys(call));
    args->q = tensor(operands->of[OPERAND_Q]);
    args->k = tensor(operands->of[OPERAND_K]);
    args->v = tensor(operands->of[v_is_k(call) ? OPERAND_K : OPERAND_V]);
    args->k.dtype = of_k;
    args->v.dtype = of_v;
    args->o = tensor(operands->o);
    args->dtype = args->o.dtype;
    args->lse = operands->lse == NULL ? NULL : operands->lse->data;
    args->workspace = operands->workspace->data;
    args->workspace_size = (uint64_t)buffer_length(operands->workspace, 0);
    return FLASH_SUCCESS;
}

/* ---- Arrays of a value per sequence or head ---- */

/* Takes an operand of `count` values. */
static flash_status_t take_values(const call_t *call, enum operand operand, int64_t count,
                                  const void **values) {
    *values = operand_data(&call->operands, operand);
    return *values == NULL ? FLASH_SUCCESS
                           : SHAPE_CHECK(call->operands.of[operand], operand_name(operand), count);
}

static flash_status_t take_lengths(const call_t *call, enum operand operand, int64_t count,
                                   const int32_t **lengths) {
    const void *values;
    FLASH_TRY(take_values(call, operand, count, &values));
    *lengths = values;
    return FLASH_SUCCESS;
}

static flash_status_t set_lengths(call_t *call) {
    flash_forward_args_t *args = &call->args;
    const int64_t batch = args->batch;
    FLASH_TRY(take_lengths(call, OPERAND_CU_SEQLENS_Q, batch + 1, &args->cu_seqlens_q));
    FLASH_TRY(take_lengths(call, OPERAND_CU_SEQLENS_K, batch + 1, &args->cu_seqlens_k));
    FLASH_TRY(take_lengths(call, OPERAND_SEQUSED_Q, batch, &args->seqused_q));
    FLASH_TRY(take_lengths(call, OPERAND_SEQUSED_K, batch, &args->seqused_k));
    return take_lengths(call, OPERAND_LEFTPAD_K, batch, &args->leftpad_k);
}

static flash_status_t set_sinks(call_t *call) {
    const void *sinks;
    FLASH_TRY(take_values(call, OPERAND_SINKS, call->args.n_heads, &sinks));
    call->args.sinks = sinks;
    return FLASH_SUCCESS;
}

static flash_status_t set_slopes(call_t *call) {
    const XLA_FFI_Buffer *slopes = call->operands.of[OPERAND_ALIBI_SLOPES];
    flash_forward_args_t *args = &call->args;
    if (slopes == NULL)
        return FLASH_SUCCESS;
    args->alibi_slopes = operand_data(&call->operands, OPERAND_ALIBI_SLOPES);
    args->alibi_stride_batch = slopes->rank == 2 ? args->n_heads : 0;
    return slopes->rank == 2 ? SHAPE_CHECK(slopes, "alibi_slopes", args->batch, args->n_heads)
                             : SHAPE_CHECK(slopes, "alibi_slopes", args->n_heads);
}

/* ---- Scales ---- */

/* Counts the entries that have scales of K and V: sequences, or pages. */
static int64_t count_scaled(const call_t *call, enum operand operand) {
    const bool of_pages = (call->attributes.flags & FLASH_FLAG_PAGE_SCALES) != 0;
    return of_pages && operand != OPERAND_Q_DESCALE ? call->operands.of[OPERAND_K]->dims[0]
                                                    : call->args.batch;
}

/* Takes the scales of K, V or Q: one for all, or [batch, n_heads_kv], or [n_pages, n_heads_kv]. */
static flash_status_t take_scales(call_t *call, enum operand operand, const float **scales,
                                  int64_t *stride_batch, int64_t *stride_head) {
    const XLA_FFI_Buffer *buffer = call->operands.of[operand];
    const flash_forward_args_t *args = &call->args;
    if (buffer == NULL)
        return FLASH_SUCCESS;
    *scales = operand_data(&call->operands, operand);
    call->args.quant = &call->quant;
    if (buffer->rank == 0)
        return FLASH_SUCCESS;
    *stride_batch = args->n_heads_kv;
    *stride_head = 1;
    return SHAPE_CHECK(buffer, operand_name(operand), count_scaled(call, operand),
                       args->n_heads_kv);
}

/* Takes those of each token and head, of the shape of Q with one column. */
static flash_status_t take_token_scales(call_t *call, const XLA_FFI_Buffer *scales) {
    const XLA_FFI_Buffer *q = call->operands.of[OPERAND_Q];
    flash_quant_t *quant = &call->quant;
    int64_t shape[4] = {1, 1, 1, 1};
    for (int64_t i = 0; i < q->rank - 1; i++)
        shape[i] = q->dims[i];
    FLASH_TRY(shape_check(scales, "q_descale", q->rank, shape));
    quant->q_token_scale = operand_data(&call->operands, OPERAND_Q_DESCALE);
    quant->q_token_scale_stride_head = 1;
    quant->q_token_scale_stride_seq = buffer_length(q, -2);
    quant->q_token_scale_stride_batch =
        q->rank == 4 ? buffer_length(q, -2) * buffer_length(q, -3) : 0;
    call->args.quant = quant;
    return FLASH_SUCCESS;
}

static flash_status_t take_q_scales(call_t *call) {
    const XLA_FFI_Buffer *scales = call->operands.of[OPERAND_Q_DESCALE];
    flash_quant_t *quant = &call->quant;
    if (scales != NULL && scales->rank == call->operands.of[OPERAND_Q]->rank)
        return take_token_scales(call, scales);
    return take_scales(call, OPERAND_Q_DESCALE, &quant->q_scale, &quant->q_scale_stride_batch,
                       &quant->q_scale_stride_head);
}

static flash_status_t set_scales(call_t *call) {
    flash_quant_t *quant = &call->quant;
    FLASH_TRY(take_scales(call, OPERAND_K_DESCALE, &quant->k_scale, &quant->k_scale_stride_batch,
                          &quant->k_scale_stride_head));
    FLASH_TRY(take_scales(call, OPERAND_V_DESCALE, &quant->v_scale, &quant->v_scale_stride_batch,
                          &quant->v_scale_stride_head));
    return take_q_scales(call);
}

/* ---- Pages ---- */

static flash_status_t check_table(const call_t *call) {
    const XLA_FFI_Buffer *table = call->operands.of[OPERAND_PAGE_TABLE];
    const XLA_FFI_Buffer *v_table = call->operands.of[OPERAND_V_PAGE_TABLE];
    const bool is_flat = is_given(call, OPERAND_PAGE_INDPTR);
    if (table == NULL) {
        FLASH_REQUIRE(v_table == NULL && !is_flat, FLASH_ERROR_INVALID_ARGUMENT,
                      "%s is given without page_table", is_flat ? "page_indptr" : "v_page_table");
        return FLASH_SUCCESS;
    }
    FLASH_REQUIRE(table->rank == (is_flat ? 1 : 2), FLASH_ERROR_INVALID_ARGUMENT,
                  "page_table has %lld axes, %s page_indptr", (long long)table->rank,
                  is_flat ? "with" : "without");
    FLASH_REQUIRE(is_flat || is_given(call, OPERAND_PAGE_ROWS) ||
                      buffer_length(table, 0) >= call->args.batch,
                  FLASH_ERROR_INVALID_ARGUMENT, "page_table has %lld rows for a batch of %lld",
                  (long long)buffer_length(table, 0), (long long)call->args.batch);
    return v_table == NULL ? FLASH_SUCCESS
                           : shape_check(v_table, "v_page_table", table->rank, table->dims);
}

/* Takes the row of each sequence, of 32 or 64 bits. */
static flash_status_t take_rows(call_t *call) {
    const XLA_FFI_Buffer *buffer = call->operands.of[OPERAND_PAGE_ROWS];
    const void *rows;
    FLASH_TRY(take_values(call, OPERAND_PAGE_ROWS, call->args.batch, &rows));
    if (buffer != NULL && buffer->dtype == XLA_FFI_DataType_S64)
        call->paging.page_rows64 = rows;
    else
        call->paging.page_rows = rows;
    return FLASH_SUCCESS;
}

static flash_status_t set_pages(call_t *call) {
    const XLA_FFI_Buffer *table = call->operands.of[OPERAND_PAGE_TABLE];
    const XLA_FFI_Buffer *k = call->operands.of[OPERAND_K];
    flash_paging_t *paging = &call->paging;
    const int64_t batch = call->args.batch;
    if (!is_paged(call))
        return FLASH_SUCCESS;
    FLASH_REQUIRE(k->rank == 4, FLASH_ERROR_INVALID_ARGUMENT, "k has %lld axes: pages have 4",
                  (long long)k->rank);
    FLASH_TRY(check_table(call));
    paging->page_size = buffer_length(k, 1);
    paging->n_pages = buffer_length(k, 0);
    paging->page_table = operand_data(&call->operands, OPERAND_PAGE_TABLE);
    paging->v_page_table = operand_data(&call->operands, OPERAND_V_PAGE_TABLE);
    paging->page_table_stride = table != NULL && table->rank == 2 ? buffer_length(table, 1) : 0;
    call->args.paging = paging;
    FLASH_TRY(take_lengths(call, OPERAND_PAGE_INDPTR, batch + 1, &paging->page_indptr));
    return take_rows(call);
}

/* ---- Masks ---- */

/* Returns the stride of an axis along which a mask repeats where its length is 1. */
static flash_status_t mask_stride(const XLA_FFI_Buffer *mask, int axis, int64_t length,
                                  int64_t dense, int64_t *stride) {
    const int64_t own = buffer_length(mask, axis);
    FLASH_REQUIRE(own == 1 || own == length, FLASH_ERROR_INVALID_ARGUMENT,
                  "the mask's axis %d has length %lld: not 1 or %lld", axis, (long long)own,
                  (long long)length);
    *stride = own == 1 ? 0 : dense;
    return FLASH_SUCCESS;
}

static flash_status_t set_mask_strides(call_t *call, const XLA_FFI_Buffer *buffer) {
    flash_mask_t *mask = &call->mask;
    const bool ragged = is_given(call, OPERAND_CU_SEQLENS_Q);
    const int64_t queries = buffer_length(call->operands.of[OPERAND_Q], -3);
    const int64_t row = buffer_length(buffer, -1), head = row * buffer_length(buffer, -2);
    FLASH_REQUIRE(buffer->rank == (ragged ? 3 : 4), FLASH_ERROR_INVALID_ARGUMENT,
                  "the mask has %lld axes: not %d", (long long)buffer->rank, ragged ? 3 : 4);
    FLASH_TRY(mask_stride(buffer, -2, queries, row, &mask->stride_query));
    FLASH_TRY(mask_stride(buffer, -3, call->args.n_heads, head, &mask->stride_head));
    if (ragged)
        return FLASH_SUCCESS;
    return mask_stride(buffer, -4, call->args.batch, head * buffer_length(buffer, -3),
                       &mask->stride_batch);
}

static flash_status_t set_columns(call_t *call, const XLA_FFI_Buffer *buffer) {
    flash_mask_t *mask = &call->mask;
    const int64_t width = buffer_length(buffer, -1), n_keys = call->attributes.mask_keys;
    const bool is_bits = mask->kind == FLASH_MASK_BITS;
    FLASH_REQUIRE(n_keys >= 0 && n_keys <= (is_bits ? 32 * width : width),
                  FLASH_ERROR_INVALID_ARGUMENT, "the mask has %lld %s for %lld keys",
                  (long long)width, is_bits ? "words" : "columns", (long long)n_keys);
    mask->n_keys = n_keys;
    mask->stride_key = is_bits ? 0 : 1;
    return set_mask_strides(call, buffer);
}

static flash_status_t set_factors(call_t *call) {
    const void *factors;
    FLASH_TRY(take_values(call, OPERAND_MASK_HEAD_SCALE, call->args.n_heads, &factors));
    call->mask.head_scale = factors;
    return FLASH_SUCCESS;
}

/* A mask without elements is none: neither has the call any scores. */
static flash_status_t set_mask(call_t *call) {
    const bool is_bits = is_given(call, OPERAND_MASK_BITS);
    const enum operand operand = is_bits ? OPERAND_MASK_BITS : OPERAND_ATTN_MASK;
    const XLA_FFI_Buffer *buffer = call->operands.of[operand];
    FLASH_REQUIRE(!is_bits || !is_given(call, OPERAND_ATTN_MASK), FLASH_ERROR_INVALID_ARGUMENT,
                  "attn_mask and mask_bits are given: a call has one mask");
    FLASH_REQUIRE(buffer != NULL || !is_given(call, OPERAND_MASK_HEAD_SCALE),
                  FLASH_ERROR_INVALID_ARGUMENT, "mask_head_scale is given without a mask");
    if (buffer == NULL)
        return FLASH_SUCCESS;
    call->mask.kind = is_bits ? FLASH_MASK_BITS : FLASH_MASK_ADD;
    call->mask.dtype = is_bits ? 0 : buffer_dtype(buffer);
    call->mask.flags = (uint32_t)call->attributes.mask_flags;
    call->mask.data = buffer->data;
    FLASH_TRY(set_columns(call, buffer));
    FLASH_TRY(set_factors(call));
    if (shape_has_elements(buffer) && call->mask.n_keys > 0)
        call->args.mask = &call->mask;
    return FLASH_SUCCESS;
}

/* ---- The whole ---- */

static flash_status_t set_numbers(call_t *call) {
    const attributes_t *attributes = &call->attributes;
    flash_forward_args_t *args = &call->args;
    FLASH_REQUIRE(attributes->n_multiprocessors >= 0 && attributes->n_multiprocessors <= INT32_MAX,
                  FLASH_ERROR_INVALID_ARGUMENT, "n_multiprocessors is %lld",
                  (long long)attributes->n_multiprocessors);
    FLASH_REQUIRE(((attributes->flags | attributes->mask_flags) & ~INT64_C(0xffffffff)) == 0,
                  FLASH_ERROR_UNSUPPORTED, "flags is %#llx, mask_flags %#llx: unknown bits",
                  (long long)attributes->flags, (long long)attributes->mask_flags);
    args->flags = (uint32_t)attributes->flags;
    args->window_left = attributes->window_left;
    args->window_right = attributes->window_right;
    args->softmax_scale = attributes->softmax_scale;
    args->softcap = attributes->softcap;
    args->attention_chunk = attributes->attention_chunk;
    args->diagonal_offset = attributes->diagonal_offset;
    args->n_multiprocessors = (int32_t)attributes->n_multiprocessors;
    return FLASH_SUCCESS;
}

flash_status_t call_read_taken(int32_t device, call_t *call) {
    call->args = (flash_forward_args_t)FLASH_FORWARD_ARGS_INIT;
    call->paging = (flash_paging_t)FLASH_PAGING_INIT;
    call->quant = (flash_quant_t)FLASH_QUANT_INIT;
    call->mask = (flash_mask_t)FLASH_MASK_INIT;
    call->args.device = device;
    FLASH_TRY(set_numbers(call));
    FLASH_TRY(set_tensors(call));
    FLASH_TRY(set_lengths(call));
    FLASH_TRY(set_pages(call));
    FLASH_TRY(set_scales(call));
    FLASH_TRY(set_sinks(call));
    FLASH_TRY(set_slopes(call));
    return set_mask(call);
}

flash_status_t call_read(const XLA_FFI_CallFrame *frame, int32_t device, call_t *call) {
    FLASH_TRY(attributes_read(&frame->attrs, &call->attributes));
    FLASH_TRY(
        operands_take(&frame->args, &frame->rets, call->attributes.operands, &call->operands));
    return call_read_taken(device, call);
}

/* ---- Ends that data says ---- */

static int64_t row_of(const flash_paging_t *paging, int64_t sequence) {
    return paging->page_rows64 != NULL ? paging->page_rows64[sequence]
                                       : paging->page_rows[sequence];
}

static flash_status_t check_rows_of_table(const call_t *call) {
    const XLA_FFI_Buffer *table = call->operands.of[OPERAND_PAGE_TABLE];
    const bool has_rows = is_given(call, OPERAND_PAGE_ROWS);
    for (int64_t b = 0; table != NULL && has_rows && b < call->args.batch; b++)
        FLASH_REQUIRE(row_of(&call->paging, b) < buffer_length(table, 0),
                      FLASH_ERROR_INVALID_ARGUMENT,
                      "page_rows[%lld] is %lld, page_table has %lld rows", (long long)b,
                      (long long)row_of(&call->paging, b), (long long)buffer_length(table, 0));
    return FLASH_SUCCESS;
}

flash_status_t call_check_ends(const call_t *call) {
    const flash_forward_args_t *args = &call->args;
    const int64_t total_q = buffer_length(call->operands.of[OPERAND_Q], 0);
    const int64_t total_k = buffer_length(call->operands.of[OPERAND_K], 0);
    const int32_t *indptr = call->paging.page_indptr;
    if (args->cu_seqlens_q != NULL)
        FLASH_REQUIRE(args->cu_seqlens_q[args->batch] == total_q, FLASH_ERROR_INVALID_ARGUMENT,
                      "cu_seqlens_q ends at %d, q has %lld tokens", args->cu_seqlens_q[args->batch],
                      (long long)total_q);
    if (has_ragged_keys(call))
        FLASH_REQUIRE(args->cu_seqlens_k[args->batch] <= total_k, FLASH_ERROR_INVALID_ARGUMENT,
                      "cu_seqlens_k ends at %d, k has %lld tokens", args->cu_seqlens_k[args->batch],
                      (long long)total_k);
    if (indptr != NULL) {
        const int64_t ids = buffer_length(call->operands.of[OPERAND_PAGE_TABLE], 0);
        FLASH_REQUIRE(indptr[args->batch] <= ids, FLASH_ERROR_INVALID_ARGUMENT,
                      "page_indptr ends at %d, page_table has %lld ids", indptr[args->batch],
                      (long long)ids);
        return FLASH_SUCCESS;
    }
    return check_rows_of_table(call);
}
