/*
 * There is one test per reason to refuse a call of attention. It checks the status, a message that
 * names the condition and the values, and that outputs are untouched.
 */
#include "support.h"

#include <math.h>

/* Lengths for the tests of ragged batches: sequences of 3 and 2 queries, 5 and 4 keys. */
static const int32_t CU_Q[] = {0, 3, 5}, CU_K[] = {0, 5, 9};

/* Fills an array for one spoiled call. */
static const int32_t *lengths(int32_t first, int32_t second, int32_t third) {
    static int32_t array[3];
    array[0] = first, array[1] = second, array[2] = third;
    return array;
}

/* Returns the address of an element. */
static float *at(const flash_tensor_t *tensor, int64_t element) {
    return (float *)tensor->data + element;
}

/* Makes a mask of numbers for one spoiled call, with a row for all queries. */
static flash_mask_t *mask_of(flash_forward_args_t *args) {
    static const float numbers[8] = {0};
    static flash_mask_t mask;
    mask = (flash_mask_t)FLASH_MASK_INIT;
    mask.kind = FLASH_MASK_ADD;
    mask.data = numbers;
    mask.stride_key = 1;
    mask.n_keys = args->seqlen_k;
    args->mask = &mask;
    return &mask;
}

static flash_mask_t *bits_of(flash_forward_args_t *args) {
    flash_mask_t *mask = mask_of(args);
    mask->kind = FLASH_MASK_BITS;
    mask->stride_key = 0;
    return mask;
}

/* Makes a mask of one row of bits. */
static flash_mask_t *bits_at(flash_forward_args_t *args, const void *data, int64_t n_keys) {
    flash_mask_t *mask = bits_of(args);
    mask->data = data;
    mask->n_keys = n_keys;
    return mask;
}

static flash_mask_t *last_keys_of(flash_forward_args_t *args) {
    flash_mask_t *mask = mask_of(args);
    mask->flags = FLASH_MASK_LAST_KEYS;
    return mask;
}

/* Makes a dropout for one spoiled call. */
static const flash_dropout_t *dropout_of(float p) {
    static flash_dropout_t dropout;
    dropout = (flash_dropout_t)FLASH_DROPOUT_INIT;
    dropout.p = p;
    return &dropout;
}

static const flash_dropout_t ODD_DROPOUT = {.struct_size = 1};

static const float SLOPES[8] = {0};

/* Spoils a valid call. */
typedef void (*spoil_t)(flash_forward_args_t *args, const flash_kernel_t **kernel);

typedef struct refusal {
    spoil_t spoil;
    flash_status_t status;
    const char *words;
    bool shape;  /* calls that read no data refuse it too */
    bool kernel; /* the call names a kernel */
} refusal_t;

#define INVALID FLASH_ERROR_INVALID_ARGUMENT
#define BIG     ((int64_t)1 << 62)

/*
 * X(name of the test, how the call is spoiled, status, words of the message)
 * What sizes, types and flags alone are refused for: by every call that takes the arguments.
 */
#define SHAPE_REFUSALS(X)                                                                          \
    X(device_negative, args->device = -1, INVALID, "device is 0xffffffff")                         \
    X(device_of_no_kind, args->device = 0x20000, INVALID, "device is 0x20000")                     \
    X(device_cpu_with_a_number, args->device = 1, INVALID, "device is 0x1")                        \
    X(device_cuda, args->device = ABSENT_CUDA_DEVICE, ABSENT_DEVICE_STATUS, "CUDA device 1000")    \
    X(dtype_zero, args->dtype = 0, INVALID, "dtype is 0")                                          \
    X(dtype_unknown, args->dtype = 99, INVALID, "dtype is 99")                                     \
    X(flags_unknown, args->flags = 1u << 31, INVALID, "0x80000000")                                \
    X(batch_negative, args->batch = -1, INVALID, "batch is -1")                                    \
    X(batch_huge, args->batch = BIG, INVALID, "batch is 4611686018427387904")                      \
    X(seqlen_q_negative, args->seqlen_q = -2, INVALID, "seqlen_q is -2")                           \
    X(seqlen_q_huge, args->seqlen_q = BIG, INVALID, "seqlen_q is 4611686018427387904")             \
    X(seqlen_k_negative, args->seqlen_k = -3, INVALID, "seqlen_k is -3")                           \
    X(seqlen_k_huge, args->seqlen_k = BIG, INVALID, "seqlen_k is 4611686018427387904")             \
    X(n_heads_zero, args->n_heads = 0, INVALID, "n_heads is 0")                                    \
    X(n_heads_negative, args->n_heads = -4, INVALID, "n_heads is -4")                              \
    X(n_heads_huge, args->n_heads = BIG, INVALID, "n_heads is 4611686018427387904")                \
    X(n_heads_kv_negative, args->n_heads_kv = -2, INVALID, "n_heads_kv is -2")                     \
    X(n_heads_kv_huge, args->n_heads_kv = BIG, INVALID, "n_heads_kv is 4611686018427387904")       \
    X(n_heads_kv_zero, args->n_heads_kv = 0, INVALID, "n_heads_kv is 0")                           \
    X(n_heads_kv_not_dividing, args->n_heads_kv = 3, INVALID, "n_heads is 4")                      \
    X(n_heads_kv_above, args->n_heads_kv = 8, INVALID, "n_heads_kv, 8")                            \
    X(d_head_zero, args->d_head = 0, INVALID, "d_head is 0")                                       \
    X(d_head_negative, args->d_head = -8, INVALID, "d_head is -8")                                 \
    X(d_head_huge, args->d_head = BIG, INVALID, "d_head is 4611686018427387904")                   \
    X(d_head_v_negative, args->d_head_v = -8, INVALID, "d_head_v is -8")                           \
    X(d_head_v_huge, args->d_head_v = BIG, INVALID, "d_head_v is 4611686018427387904")             \
    X(window_left_below, (args->flags = FLASH_FLAG_WINDOW, args->window_left = -2), INVALID,       \
      "window_left is -2")                                                                         \
    X(window_right_below, (args->flags = FLASH_FLAG_WINDOW, args->window_right = -2), INVALID,     \
      "window_right is -2")                                                                        \
    X(window_left_without_flag, args->window_left = 4, INVALID,                                    \
      "window_left is 4 without FLASH_FLAG_WINDOW")                                                \
    X(window_right_without_flag, args->window_right = 4, INVALID,                                  \
      "window_right is 4 without FLASH_FLAG_WINDOW")                                               \
    X(window_without_bounds,                                                                       \
      (args->flags = FLASH_FLAG_WINDOW, args->window_left = args->window_right = -1), INVALID,     \
      "neither window_left nor window_right")                                                      \
    X(chunk_negative, args->attention_chunk = -1, INVALID, "attention_chunk is -1")                \
    X(diagonal_too_far_to_the_right, args->diagonal_offset = INT32_MAX - args->seqlen_k + 1,       \
      INVALID,                                                                                     \
      "diagonal_offset is 2147483643: of 3 queries over 5 keys, some would stand beyond 2^31 - 1") \
    X(diagonal_too_far_to_the_left, args->diagonal_offset = args->seqlen_q - INT32_MAX - 1,        \
      INVALID, "diagonal_offset is -2147483645: of 3 queries over 5 keys, some would stand")       \
    X(diagonal_beyond_all, args->diagonal_offset = INT64_MIN, INVALID,                             \
      "diagonal_offset is -9223372036854775808")                                                   \
    X(q_dtype_unknown, args->q.dtype = 99, INVALID, "q.dtype is 99")                               \
    X(k_of_e4m3_alone, args->k.dtype = FLASH_DTYPE_E4M3, FLASH_ERROR_UNSUPPORTED,                  \
      "k.dtype is 4 and v.dtype is 3: where one of K and V is of FLASH_DTYPE_E4M3, both are")      \
    X(v_of_latent_tokens_alone, args->v.dtype = FLASH_DTYPE_LATENT_E4M3, FLASH_ERROR_UNSUPPORTED,  \
      "k.dtype is 3 and v.dtype is 5: where one of K and V is of FLASH_DTYPE_LATENT_E4M3")         \
    X(q_of_quantised_blocks, args->q.dtype = FLASH_DTYPE_Q8_0, FLASH_ERROR_UNSUPPORTED,            \
      "q.dtype is FLASH_DTYPE_Q8_0 (6): K and V alone")                                            \
    X(o_of_quantised_blocks, args->o.dtype = FLASH_DTYPE_Q4_0, FLASH_ERROR_UNSUPPORTED,            \
      "o.dtype is FLASH_DTYPE_Q4_0 (7): K and V alone")                                            \
    X(blocks_that_d_head_cuts, (args->k.dtype = FLASH_DTYPE_Q8_0, args->d_head = 48), INVALID,     \
      "d_head is 48: not a multiple of 32, the columns of a block of FLASH_DTYPE_Q8_0")            \
    X(blocks_that_d_head_v_cuts, (args->v.dtype = FLASH_DTYPE_Q4_0, args->d_head_v = 33), INVALID, \
      "d_head_v is 33: not a multiple of 32, the columns of a block of FLASH_DTYPE_Q4_0")          \
    X(rows_of_blocks_overlap,                                                                      \
      (args->k.dtype = FLASH_DTYPE_Q8_0, args->d_head = 64, args->k.stride_seq = 67), INVALID,     \
      "k.stride_seq is 67 bytes: a row of FLASH_DTYPE_Q8_0 of d_head 64 has 68")                   \
    X(v_rows_of_blocks_overlap,                                                                    \
      (args->v.dtype = FLASH_DTYPE_Q4_0, args->d_head_v = 64, args->v.stride_seq = 35), INVALID,   \
      "v.stride_seq is 35 bytes: a row of FLASH_DTYPE_Q4_0 of d_head_v 64 has 36")                 \
    X(o_of_another_type, args->o.dtype = FLASH_DTYPE_FP16, FLASH_ERROR_UNSUPPORTED,                \
      "FP32 (Q FP32, O FP16) on the CPU: if K and V are FP32, Q and O can be: FP32 and FP32")      \
    X(q_of_another_type, args->q.dtype = FLASH_DTYPE_FP16, FLASH_ERROR_UNSUPPORTED,                \
      "FP32 (Q FP16, O FP32) on the CPU: if K and V are FP32, Q and O can be: FP32 and FP32")      \
    X(q_of_the_other_16_bits, (args->dtype = FLASH_DTYPE_FP16, args->q.dtype = FLASH_DTYPE_BF16),  \
      FLASH_ERROR_UNSUPPORTED,                                                                     \
      "if K and V are FP16, Q and O can be: FP16 and FP16, FP16 and FP32, FP32 and FP16, FP32")    \
    X(n_multiprocessors_negative, args->n_multiprocessors = -1, INVALID,                           \
      "n_multiprocessors is -1: negative")                                                         \
    X(n_multiprocessors_of_the_cpu, args->n_multiprocessors = 1, INVALID,                          \
      "n_multiprocessors is 1, and device is 0x0, not a CUDA device")                              \
    X(dropout_p_negative, args->dropout = dropout_of(-0.5f), INVALID,                              \
      "dropout.p is -0.5: not within 0 ... 1, 1 left out")                                         \
    X(dropout_p_of_1, args->dropout = dropout_of(1), INVALID, "dropout.p is 1: not within")        \
    X(dropout_p_nan, args->dropout = dropout_of(NAN), INVALID, "dropout.p is")                     \
    X(dropout_of_another_age, args->dropout = &ODD_DROPOUT, INVALID,                               \
      "flash_dropout_t.struct_size is 1")                                                          \
    X(dropout_of_8_bits,                                                                           \
      (args->dropout = dropout_of(0.5f), args->k.dtype = FLASH_DTYPE_E4M3,                         \
       args->v.dtype = FLASH_DTYPE_E4M3),                                                          \
      FLASH_ERROR_UNSUPPORTED, "k.dtype is 4: K and V with dropout are of fp16, bf16 or fp32")     \
    X(dropout_of_many_heads,                                                                       \
      (args->dropout = dropout_of(0.5f), args->batch = INT32_MAX, args->n_heads = 4), INVALID,     \
      "with dropout their product is at most 2^32")                                                \
    X(reserved32, args->reserved32 = 1, FLASH_ERROR_UNSUPPORTED, "flash_forward_args_t.reserved")  \
    X(reserved_first, args->reserved[0] = 1, FLASH_ERROR_UNSUPPORTED,                              \
      "flash_forward_args_t.reserved is not zero")                                                 \
    X(reserved_last, args->reserved[3] = 1, FLASH_ERROR_UNSUPPORTED,                               \
      "flash_forward_args_t.reserved is not zero")                                                 \
    X(softmax_scale_negative, args->softmax_scale = -0.5f, INVALID, "softmax_scale is -0.5")       \
    X(softmax_scale_nan, args->softmax_scale = NAN, INVALID, "softmax_scale is")                   \
    X(softmax_scale_infinite, args->softmax_scale = INFINITY, INVALID, "softmax_scale is inf")     \
    X(softcap_negative, args->softcap = -1, INVALID, "softcap is -1")                              \
    X(softcap_nan, args->softcap = NAN, INVALID, "softcap is")                                     \
    X(softcap_infinite, args->softcap = INFINITY, INVALID, "softcap is inf")                       \
    X(struct_size_zero, args->struct_size = 0, INVALID, "struct_size is 0")                        \
    X(struct_size_odd, args->struct_size = 13, INVALID, "struct_size is 13")                       \
    X(struct_size_enormous, args->struct_size = UINT32_MAX, INVALID, "struct_size is 4294967295")

/* Only flash_forward() refuses these, because other calls read no data. */
#define DATA_REFUSALS(X)                                                                           \
    X(q_null, args->q.data = NULL, INVALID, "q.data is NULL")                                      \
    X(k_null, args->k.data = NULL, INVALID, "k.data is NULL")                                      \
    X(v_null, args->v.data = NULL, INVALID, "v.data is NULL")                                      \
    X(o_null, args->o.data = NULL, INVALID, "o.data is NULL")                                      \
    X(stride_batch_negative, args->q.stride_batch = -1, INVALID, "q.stride_batch is -1")           \
    X(stride_seq_negative, args->k.stride_seq = -1, INVALID, "k.stride_seq is -1")                 \
    X(stride_head_negative, args->v.stride_head = -1, INVALID, "v.stride_head is -1")              \
    X(o_stride_negative, args->o.stride_head = -8, INVALID, "o.stride_head is -8")                 \
    X(stride_overflowing, args->k.stride_seq = INT64_MAX / 4, INVALID, "k overflows")              \
    X(stride_overflowing_bytes, args->v.stride_batch = INT64_MAX / 3, INVALID, "v overflows")      \
    X(o_stride_overflowing, args->o.stride_batch = INT64_MAX, INVALID, "o overflows")              \
    X(q_stride_forgotten, args->q.stride_head = 0, INVALID, "q.stride_head is 0 along more")       \
    X(k_stride_forgotten, args->k.stride_seq = 0, INVALID, "k.stride_seq is 0 along more")         \
    X(v_stride_forgotten, args->v.stride_batch = 0, INVALID, "v.stride_batch is 0 along more")     \
    X(ragged_stride_forgotten, (args->cu_seqlens_k = CU_K, args->k.stride_seq = 0), INVALID,       \
      "k.stride_seq is 0 along more")                                                              \
    X(o_stride_zero_batch, (args->flags = FLASH_FLAG_BROADCAST, args->o.stride_batch = 0),         \
      INVALID, "o.stride_batch is 0 along more")                                                   \
    X(o_stride_zero_seq, (args->flags = FLASH_FLAG_BROADCAST, args->o.stride_seq = 0), INVALID,    \
      "o.stride_seq is 0 along more")                                                              \
    X(o_stride_zero_head, (args->flags = FLASH_FLAG_BROADCAST, args->o.stride_head = 0), INVALID,  \
      "o.stride_head is 0 along more")                                                             \
    X(d_head_v_beyond_the_strides_of_o, args->d_head_v = 16, INVALID, "o overlaps itself")         \
    X(o_rows_overlap, args->o.stride_head = 7, INVALID, "o overlaps itself: o.stride_head is 7")   \
    X(o_batches_overlap, args->o.stride_batch = 95, INVALID, "o overlaps itself: o.stride_batch")  \
    X(q_reserved, args->q.reserved[0] = 1, FLASH_ERROR_UNSUPPORTED, "q.reserved")                  \
    X(k_reserved, args->k.reserved[1] = 1, FLASH_ERROR_UNSUPPORTED, "k.reserved")                  \
    X(v_reserved, args->v.reserved[0] = 1, FLASH_ERROR_UNSUPPORTED, "v.reserved")                  \
    X(o_reserved, args->o.reserved[3] = 1, FLASH_ERROR_UNSUPPORTED, "o.reserved")                  \
    X(q_reserved32, args->q.reserved32 = 1, FLASH_ERROR_UNSUPPORTED, "q.reserved")                 \
    X(workspace_null, args->workspace = NULL, INVALID, "workspace is NULL")                        \
    X(workspace_empty, args->workspace_size = 0, FLASH_ERROR_WORKSPACE_TOO_SMALL,                  \
      "workspace_size is 0")                                                                       \
    X(workspace_one_byte, args->workspace_size = 1, FLASH_ERROR_WORKSPACE_TOO_SMALL,               \
      "workspace_size is 1")                                                                       \
    X(cu_seqlens_q_not_from_zero, args->cu_seqlens_q = lengths(1, 3, 5), INVALID,                  \
      "cu_seqlens_q[0] is 1")                                                                      \
    X(cu_seqlens_q_descending, args->cu_seqlens_q = lengths(0, 3, 2), INVALID,                     \
      "cu_seqlens_q[2] is 2")                                                                      \
    X(cu_seqlens_q_too_long, args->cu_seqlens_q = lengths(0, 1, 5), INVALID,                       \
      "cu_seqlens_q[2] - cu_seqlens_q[1] is 4")                                                    \
    X(cu_seqlens_q_negative, args->cu_seqlens_q = lengths(0, -1, 2), INVALID,                      \
      "cu_seqlens_q[1] is -1")                                                                     \
    X(cu_seqlens_k_not_from_zero, args->cu_seqlens_k = lengths(-1, 3, 5), INVALID,                 \
      "cu_seqlens_k[0] is -1")                                                                     \
    X(cu_seqlens_k_descending, args->cu_seqlens_k = lengths(0, 3, 2), INVALID,                     \
      "cu_seqlens_k[2] is 2")                                                                      \
    X(cu_seqlens_k_too_long, args->cu_seqlens_k = lengths(0, 6, 7), INVALID,                       \
      "cu_seqlens_k[1] - cu_seqlens_k[0] is 6")                                                    \
    X(seqused_k_negative, args->seqused_k = lengths(5, -1, 0), INVALID, "seqused_k[1] is -1")      \
    X(seqused_k_too_long, args->seqused_k = lengths(6, 1, 0), INVALID, "seqused_k[0] is 6")        \
    X(seqused_k_beyond_its_sequence,                                                               \
      (args->cu_seqlens_k = CU_K, args->seqused_k = lengths(5, 5, 0)), INVALID,                    \
      "seqused_k[1] is 5")                                                                         \
    X(ragged_o_overlaps, (args->cu_seqlens_q = CU_Q, args->o.stride_seq = 31), INVALID,            \
      "o overlaps itself: o.stride_seq is 31")                                                     \
    X(o_is_q, args->o = args->q, INVALID, "o overlaps q: o begins at ")                            \
    X(q_begins_in_o, args->q.data = at(&args->o, 191), INVALID, "o overlaps q: o begins at ")      \
    X(k_begins_in_o, args->k.data = at(&args->o, 191), INVALID, "o overlaps k: o begins at ")      \
    X(v_begins_in_o, args->v.data = at(&args->o, 191), INVALID, "o overlaps v: o begins at ")      \
    X(lse_begins_in_o, args->lse = at(&args->o, 191), INVALID, "lse overlaps o: lse begins at ")   \
    X(lse_begins_in_q, args->lse = at(&args->q, 191), INVALID, "lse overlaps q: lse begins at ")   \
    X(lse_is_k, args->lse = args->k.data, INVALID, "lse overlaps k: lse begins at ")               \
    X(v_begins_in_lse, args->v.data = args->lse + 23, INVALID, "lse overlaps v: lse begins at ")   \
    X(workspace_is_q, args->workspace = args->q.data, INVALID, "workspace overlaps ")              \
    X(workspace_ends_in_v, args->workspace = at(&args->v, 1) - args->workspace_size / 4, INVALID,  \
      "workspace overlaps ")                                                                       \
    X(o_in_the_workspace, args->o.data = args->workspace, INVALID, "workspace overlaps o: ")       \
    X(lse_in_the_workspace, args->lse = args->workspace, INVALID, "workspace overlaps lse: ")      \
    X(lse_stride_negative,                                                                         \
      (args->lse_stride_seq = 1, args->lse_stride_head = -1, args->lse_stride_batch = 8), INVALID, \
      "lse_stride_head is -1")                                                                     \
    X(lse_stride_forgotten, args->lse_stride_seq = 1, INVALID, "lse_stride_batch is 0 along")      \
    X(lse_rows_overlap,                                                                            \
      (args->lse_stride_seq = 1, args->lse_stride_head = 2, args->lse_stride_batch = 8), INVALID,  \
      "lse overlaps itself: lse_stride_head is 2")                                                 \
    X(o_begins_in_q, args->o.data = at(&args->q, 191), INVALID, "o overlaps q: o begins at ")      \
    X(ragged_o_is_q, (args->cu_seqlens_q = CU_Q, args->o = args->q), INVALID, "o overlaps q")      \
    X(sinks_begin_in_o, args->sinks = at(&args->o, 191), INVALID,                                  \
      "o overlaps sinks: o begins at ")                                                            \
    X(sinks_end_in_o, args->sinks = at(&args->o, -3), INVALID, "o overlaps sinks: o begins at ")   \
    X(sinks_begin_in_lse, args->sinks = args->lse + 23, INVALID,                                   \
      "lse overlaps sinks: lse begins at ")                                                        \
    X(sinks_end_in_lse, args->sinks = args->lse - 3, INVALID, "lse overlaps sinks: lse begins at ")

/* Slopes and masks are refused for these: as SHAPE_REFUSALS, and as DATA_REFUSALS. */
#define BIAS_SHAPE_REFUSALS(X)                                                                     \
    X(mask_without_size, mask_of(args)->struct_size = 0, INVALID, "struct_size is 0")              \
    X(mask_of_no_kind, mask_of(args)->kind = 4, INVALID, "mask.kind is 4: no such kind")           \
    X(mask_kind_forgotten, mask_of(args)->kind = 0, INVALID, "mask.kind is 0")                     \
    X(mask_flags_unknown, mask_of(args)->flags = 2, INVALID, "mask.flags is 0x2")                  \
    X(mask_dtype_unknown, mask_of(args)->dtype = 9, INVALID, "mask.dtype is 9")                    \
    X(mask_of_e4m3, mask_of(args)->dtype = FLASH_DTYPE_E4M3, FLASH_ERROR_UNSUPPORTED,              \
      "mask.dtype is 4: numbers are of fp16, bf16 or fp32")                                        \
    X(mask_of_latent_tokens, mask_of(args)->dtype = FLASH_DTYPE_LATENT_E4M3,                       \
      FLASH_ERROR_UNSUPPORTED, "mask.dtype is 5: numbers are of fp16, bf16 or fp32")               \
    X(mask_bits_with_a_dtype, bits_of(args)->dtype = FLASH_DTYPE_FP32, INVALID,                    \
      "mask.dtype is 3: bits have none")                                                           \
    X(mask_bits_with_a_stride, bits_of(args)->stride_key = 1, INVALID,                             \
      "mask.stride_key is 1: bits have none")                                                      \
    X(mask_bits_with_factors, bits_of(args)->head_scale = SLOPES, INVALID,                         \
      "mask.head_scale is given with FLASH_MASK_BITS: bits are not multiplied")                    \
    X(mask_without_keys, mask_of(args)->n_keys = 0, INVALID, "mask.n_keys is 0")                   \
    X(mask_keys_huge, mask_of(args)->n_keys = BIG, INVALID, "mask.n_keys is 4611686018427387904")  \
    X(mask_first_key_negative, mask_of(args)->first_key = -1, INVALID, "mask.first_key is -1")     \
    X(mask_first_key_from_the_end, last_keys_of(args)->first_key = 1, INVALID,                     \
      "mask.first_key is 1 with FLASH_MASK_LAST_KEYS: it must be 0")                               \
    X(mask_stride_key_forgotten, mask_of(args)->stride_key = 0, INVALID,                           \
      "mask.stride_key is 0 along more than one place: FLASH_FLAG_BROADCAST says")                 \
    X(mask_stride_batch_negative, mask_of(args)->stride_batch = -1, INVALID,                       \
      "mask.stride_batch is -1: negative")                                                         \
    X(mask_stride_head_negative, mask_of(args)->stride_head = -2, INVALID,                         \
      "mask.stride_head is -2: negative")                                                          \
    X(mask_stride_query_negative, mask_of(args)->stride_query = -3, INVALID,                       \
      "mask.stride_query is -3: negative")                                                         \
    X(mask_stride_key_negative, mask_of(args)->stride_key = -4, INVALID,                           \
      "mask.stride_key is -4: negative")                                                           \
    X(slopes_forgotten, args->alibi_stride_batch = 4, INVALID,                                     \
      "alibi_stride_batch is 4, and alibi_slopes is NULL")                                         \
    X(slopes_overlap, (args->alibi_slopes = SLOPES, args->alibi_stride_batch = 3), INVALID,        \
      "alibi_stride_batch is 3: a row has 4 slopes")                                               \
    X(slopes_stride_negative, (args->alibi_slopes = SLOPES, args->alibi_stride_batch = -4),        \
      INVALID, "alibi_stride_batch is -4")

#define BIAS_DATA_REFUSALS(X)                                                                      \
    X(mask_without_data, mask_of(args)->data = NULL, INVALID, "mask.data is NULL")                 \
    X(slopes_begin_in_o, args->alibi_slopes = at(&args->o, 191), INVALID,                          \
      "o overlaps alibi_slopes: o begins at ")                                                     \
    X(slopes_end_in_lse, args->alibi_slopes = args->lse - 3, INVALID,                              \
      "lse overlaps alibi_slopes: lse begins at ")                                                 \
    X(mask_begins_in_o, mask_of(args)->data = at(&args->o, 191), INVALID,                          \
      "o overlaps mask.data: o begins at ")                                                        \
    X(mask_ends_in_o, mask_of(args)->data = at(&args->o, 1 - args->seqlen_k), INVALID,             \
      "o overlaps mask.data: o begins at ")                                                        \
    X(bits_end_in_o, bits_at(args, at(&args->o, -1), 33), INVALID,                                 \
      "o overlaps mask.data: o begins at ")                                                        \
    X(mask_begins_in_lse, mask_of(args)->data = args->lse + 23, INVALID,                           \
      "lse overlaps mask.data: lse begins at ")                                                    \
    X(factors_begin_in_o, mask_of(args)->head_scale = at(&args->o, 191), INVALID,                  \
      "o overlaps mask.head_scale: o begins at ")                                                  \
    X(factors_end_in_lse, mask_of(args)->head_scale = args->lse - 3, INVALID,                      \
      "lse overlaps mask.head_scale: lse begins at ")                                              \
    X(mask_strides_overflow, mask_of(args)->stride_query = INT64_MAX / 2, INVALID,                 \
      "mask overflows")                                                                            \
    X(mask_key_stride_overflows, mask_of(args)->stride_key = INT64_MAX / 2, INVALID,               \
      "mask overflows")

/* These are refused for the kernel that the call names. */
#define KERNEL_REFUSALS(X)                                                                         \
    X(kernel_of_no_table, *kernel = (const void *)args, INVALID, "no row of this library's table") \
    X(kernel_between_rows, *kernel = (const void *)((const char *)*kernel + 8), INVALID,           \
      "no row of this library's table")                                                            \
    X(kernel_past_the_table, *kernel = past_the_table(), INVALID,                                  \
      "no row of this library's table")                                                            \
    X(kernel_of_another_type, args->dtype = FLASH_DTYPE_BF16, FLASH_ERROR_UNSUPPORTED,             \
      "does not serve this problem: dtype")                                                        \
    X(kernel_of_another_q_type, args->q.dtype = FLASH_DTYPE_BF16, FLASH_ERROR_UNSUPPORTED,         \
      "does not serve this problem: q.dtype. The kernel has dtype FP32 (with Q and O of FP32 ")    \
    X(kernel_of_another_o_type, args->o.dtype = FLASH_DTYPE_BF16, FLASH_ERROR_UNSUPPORTED,         \
      "does not serve this problem: o.dtype")

/* Returns the address behind the last row, one row's distance from it. */
static const flash_kernel_t *past_the_table(void) {
    const int32_t last = flash_kernel_count() - 1;
    const char *end = (const char *)flash_kernel_at(last);
    return (const void *)(end + (end - (const char *)flash_kernel_at(last - 1)));
}

#define DEFINE_SPOIL(name, spoiling, status, words)                                                \
    static void spoil_##name(flash_forward_args_t *args, const flash_kernel_t **kernel) {          \
        (void)args;                                                                                \
        (void)kernel;                                                                              \
        (void)(spoiling);                                                                          \
    }
SHAPE_REFUSALS(DEFINE_SPOIL)
BIAS_SHAPE_REFUSALS(DEFINE_SPOIL)
BIAS_DATA_REFUSALS(DEFINE_SPOIL)
DATA_REFUSALS(DEFINE_SPOIL)
KERNEL_REFUSALS(DEFINE_SPOIL)

/* Returns a row of the table that serves the small problem on any machine. */
static const flash_kernel_t *reference_kernel(void) {
    for (int32_t i = 0; i < flash_kernel_count(); i++) {
        flash_config_t config = FLASH_CONFIG_INIT;
        assert_success(flash_kernel_config(flash_kernel_at(i), &config));
        if (is_forward_row(flash_kernel_at(i)) && config.arch == FLASH_ARCH_REFERENCE &&
            config.dtype == FLASH_DTYPE_FP32)
            return flash_kernel_at(i);
    }
    fail_msg("the table has no reference kernel for fp32");
    return NULL;
}

static void check_shape_calls(const refusal_t *r, const flash_forward_args_t *args,
                              const flash_kernel_t *kernel) {
    char reason[512];
    uint64_t size = 4711;
    assert_refused(flash_workspace_size(args, kernel, &size), r->status, r->words);
    assert_int_equal(size, 4711);
    assert_refused(flash_prepare(args, kernel), r->status, r->words);
    assert_refused(flash_query_support(args, kernel, reason, sizeof reason), r->status, r->words);
    assert_string_equal(reason, flash_last_error());
}

static void check_select_refuses(const refusal_t *r, const flash_forward_args_t *args) {
    char reason[16] = "untouched";
    const flash_kernel_t *kernel = NULL;
    assert_refused(flash_select_kernel(args, &kernel, reason, sizeof reason), r->status, r->words);
    assert_null(kernel);
    assert_string_equal(reason, "untouched");
}

static void is_refused(void **state) {
    const refusal_t *r = *state;
    test_problem_t p;
    const flash_kernel_t *kernel = reference_kernel();
    problem_create(&p, SMALL, 1);
    flash_forward_args_t args = p.args;
    r->spoil(&args, &kernel);
    const flash_kernel_t *wanted = r->kernel ? kernel : NULL;
    assert_refused(flash_forward(&args, wanted, NULL), r->status, r->words);
    assert_true(problem_is_untouched(&p));
    problem_check_canaries(&p);
    if (r->shape)
        check_shape_calls(r, &args, wanted);
    if (r->shape && !r->kernel)
        check_select_refuses(r, &args);
    problem_destroy(&p);
}

/* ---- Configurations ---- */

typedef struct bad_config {
    const char *text; /* a legal one */
    int32_t flash_config_t_offset;
    int32_t value;
    flash_status_t status;
    const char *words;
} bad_config_t;

#define FIELD(member) (int32_t) offsetof(flash_config_t, member)

TEST(configurations_that_cannot_be_looked_up) {
    static const char reference[] =
        "REFERENCE (FP32, any, 16, 1): causal+window+softcap+varlen+paged+bias";
    static const char sm80[] = "(FP16, 128, 64, 64, 4): async+load_2_2_2_tiles";
    static const bad_config_t bad[] = {
        {reference, FIELD(arch), 0, FLASH_ERROR_INVALID_CONFIG, "arch is 0"},
        {reference, FIELD(arch), 9999, FLASH_ERROR_INVALID_CONFIG, "arch is 9999"},
        {reference, FIELD(op), 1000, FLASH_ERROR_INVALID_CONFIG, "op is 1000"},
        {reference, FIELD(dtype), 77, FLASH_ERROR_INVALID_CONFIG, "dtype is 77"},
        {reference, FIELD(d_head), -1, FLASH_ERROR_INVALID_CONFIG, "d_head is -1"},
        {reference, FIELD(B_r), 0, FLASH_ERROR_INVALID_CONFIG, "B_r is 0"},
        {reference, FIELD(B_c), 4097, FLASH_ERROR_INVALID_CONFIG, "B_c is 4097"},
        {reference, FIELD(n_warps), 4, FLASH_ERROR_INVALID_CONFIG, "n_warps is 4"},
        {reference, FIELD(async_copy), 1, FLASH_ERROR_INVALID_CONFIG, "async_copy is 1"},
        {reference, FIELD(features), 128, FLASH_ERROR_INVALID_CONFIG, "0x80"},
        {reference, FIELD(B_r), 17, FLASH_ERROR_NOT_BUILT, "REFERENCE (FP32, any, 17, "},
        {reference, FIELD(struct_size), 0, INVALID, "struct_size is 0"},
        {sm80, FIELD(n_warps), 4, FLASH_ERROR_NOT_BUILT, "(FP16, 128, 64, 64, 4)"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        flash_config_t config = FLASH_CONFIG_INIT;
        assert_success(flash_config_parse(bad[i].text, &config));
        memcpy((char *)&config + bad[i].flash_config_t_offset, &bad[i].value, sizeof bad[i].value);
        assert_null(flash_lookup_kernel(&config));
        assert_refused(flash_last_status(), bad[i].status, bad[i].words);
    }
}

/* ---- Calls without arguments, or without a place for the answer ---- */

TEST(null_arguments) {
    flash_config_t config = FLASH_CONFIG_INIT;
    const flash_kernel_t *kernel;
    uint64_t size;
    assert_refused(flash_forward(NULL, NULL, NULL), INVALID, "NULL");
    assert_refused(flash_workspace_size(NULL, NULL, &size), INVALID, "NULL");
    assert_refused(flash_prepare(NULL, NULL), INVALID, "NULL");
    assert_refused(flash_select_kernel(NULL, &kernel, NULL, 0), INVALID, "NULL");
    assert_refused(flash_query_support(NULL, NULL, NULL, 0), INVALID, "NULL");
    assert_refused(flash_combine(NULL, NULL), INVALID, "NULL");
    assert_refused(flash_kernel_config(NULL, &config), INVALID, "no row of this library's table");
    assert_refused(flash_kernel_config(flash_kernel_at(0), NULL), INVALID, "NULL");
    assert_refused(flash_device_info(FLASH_DEVICE_CPU, NULL), INVALID, "NULL");
    assert_null(flash_kernel_name(NULL));
    assert_null(flash_lookup_kernel(NULL));
    assert_non_null(strstr(flash_last_error(), "NULL"));
}

TEST(null_results) {
    test_problem_t p;
    problem_create(&p, SMALL, 1);
    assert_refused(flash_workspace_size(&p.args, NULL, NULL), INVALID, "size is NULL");
    assert_refused(flash_select_kernel(&p.args, NULL, NULL, 0), INVALID, "kernel is NULL");
    problem_destroy(&p);
}

TEST(numbers_of_threads) {
    assert_refused(flash_set_num_threads(-1), INVALID, "-1");
    assert_refused(flash_set_num_threads(4097), INVALID, "4097");
}

static void lend_nothing(void *context, int32_t n_tasks, flash_task_t task, void *argument) {
    (void)context, (void)n_tasks, (void)task, (void)argument;
}

TEST(numbers_of_workers) {
    assert_refused(flash_set_parallel_for(lend_nothing, NULL, 0), INVALID, "n_workers is 0");
    assert_refused(flash_set_parallel_for(lend_nothing, NULL, -1), INVALID, "n_workers is -1");
    assert_refused(flash_set_parallel_for(lend_nothing, NULL, 4097), INVALID, "n_workers is 4097");
}

TEST(device_information) {
    flash_device_info_t info = FLASH_DEVICE_INFO_INIT;
    assert_refused(flash_device_info(-1, &info), INVALID, "device is 0xffffffff");
    assert_refused(flash_device_info(ABSENT_CUDA_DEVICE, &info), ABSENT_DEVICE_STATUS,
                   "CUDA device 1000");
}

TEST(kernel_indices) {
    assert_null(flash_kernel_at(-1));
    assert_non_null(strstr(flash_last_error(), "index is -1"));
    assert_null(flash_kernel_at(flash_kernel_count()));
    assert_non_null(strstr(flash_last_error(), "index is"));
}

/* ---- Odd calls that are served ---- */

TEST(the_unspoiled_call_is_served) {
    test_problem_t p;
    problem_create(&p, SMALL, 1);
    assert_success(flash_forward(&p.args, reference_kernel(), NULL));
    problem_check_result(&p);
    problem_destroy(&p);
}

TEST(empty_tensors_need_no_data) {
    static const sizes_t empty[] = {
        {.batch = 0, .seqlen_q = 3, .seqlen_k = 5, .n_heads = 4, .n_heads_kv = 2, .d_head = 8},
        {.batch = 2, .seqlen_q = 0, .seqlen_k = 5, .n_heads = 4, .n_heads_kv = 2, .d_head = 8},
    };
    for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++) {
        test_problem_t p;
        problem_create(&p, empty[i], 1);
        p.args.q.data = p.args.o.data = NULL;
        p.args.lse = NULL;
        problem_run(&p);
        problem_check_canaries(&p);
        problem_destroy(&p);
    }
}

/* LSE may have gaps between its rows, which stay as they are. */
TEST(lse_has_strides_of_its_own) {
    enum { SEQ = 2, HEAD = 8, BATCH = 40, COUNT = 2 * BATCH };
    float spread[COUNT];
    test_problem_t p;
    problem_create(&p, SMALL, 1);
    problem_run(&p);
    for (int i = 0; i < COUNT; i++)
        spread[i] = 4711;
    p.args.lse = spread;
    p.args.lse_stride_batch = BATCH, p.args.lse_stride_head = HEAD, p.args.lse_stride_seq = SEQ;
    assert_success(flash_forward(&p.args, NULL, NULL));
    for (int64_t b = 0; b < SMALL.batch; b++)
        for (int64_t h = 0; h < SMALL.n_heads; h++)
            for (int64_t i = 0; i < SMALL.seqlen_q; i++) {
                float *row = &spread[b * BATCH + h * HEAD + i * SEQ];
                const int64_t at = (b * SMALL.n_heads + h) * SMALL.seqlen_q + i;
                assert_memory_equal(row, &p.lse[at], sizeof *row);
                *row = 4711;
            }
    for (int i = 0; i < COUNT; i++)
        assert_true(spread[i] == 4711);
    problem_destroy(&p);
}

TEST(helpers_make_the_usual_layouts) {
    float data[2 * 3 * 4 * 8];
    const flash_tensor_t seq_first = flash_tensor_bshd(data, 3, 4, 8);
    const flash_tensor_t heads_first = flash_tensor_bhsd(data, 4, 3, 8);
    assert_ptr_equal(seq_first.data, data);
    assert_int_equal(seq_first.stride_batch, 3 * 4 * 8);
    assert_int_equal(seq_first.stride_seq, 4 * 8);
    assert_int_equal(seq_first.stride_head, 8);
    assert_int_equal(heads_first.stride_batch, 4 * 3 * 8);
    assert_int_equal(heads_first.stride_seq, 8);
    assert_int_equal(heads_first.stride_head, 3 * 8);
    assert_int_equal(heads_first.dtype, 0);
}

/* Q, K, V and O lie side by side in every token of one buffer. */
TEST(rows_between_rows_are_served) {
    static const sizes_t sizes = {
        .batch = 2, .seqlen_q = 5, .seqlen_k = 5, .n_heads = 4, .n_heads_kv = 4, .d_head = 8};
    enum { TENSORS = 4, TOKENS = 2 * 5, TOKEN = 4 * 8 };
    static float packed[TOKENS][TENSORS][TOKEN];
    test_problem_t p;
    problem_create(&p, sizes, 1);
    problem_run(&p);
    flash_forward_args_t args = p.args;
    flash_tensor_t *tensors[TENSORS] = {&args.q, &args.k, &args.v, &args.o};
    for (int i = 0; i < TENSORS; i++) {
        for (int64_t token = 0; token < TOKENS; token++)
            memcpy(packed[token][i], at(tensors[i], token * TOKEN), sizeof packed[token][i]);
        tensors[i]->data = packed[0][i];
        tensors[i]->stride_seq *= TENSORS;
        tensors[i]->stride_batch *= TENSORS;
    }
    memset(packed[0][TENSORS - 1], 0, sizeof packed[0][TENSORS - 1]);
    assert_success(flash_forward(&args, NULL, NULL));
    for (int64_t token = 0; token < TOKENS; token++)
        assert_memory_equal(packed[token][TENSORS - 1], p.o + token * TOKEN, sizeof packed[0][0]);
    problem_destroy(&p);
}

TEST(cut_reasons_end_with_nul) {
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    char reason[8];
    memset(reason, 'x', sizeof reason);
    assert_int_not_equal(flash_query_support(&args, NULL, reason, 5), FLASH_SUCCESS);
    assert_int_equal(strlen(reason), 4);
    assert_int_equal(reason[5], 'x');
    assert_int_not_equal(flash_query_support(&args, NULL, reason, 0), FLASH_SUCCESS);
}

#define REFUSAL(name, spoiling, status, words, shape, kernel)                                      \
    static refusal_t refusal_##name = {spoil_##name, status, words, shape, kernel};
#define SHAPE_REFUSAL(name, spoiling, status, words)                                               \
    REFUSAL(name, spoiling, status, words, true, false)
#define DATA_REFUSAL(name, spoiling, status, words)                                                \
    REFUSAL(name, spoiling, status, words, false, false)
#define KERNEL_REFUSAL(name, spoiling, status, words)                                              \
    REFUSAL(name, spoiling, status, words, true, true)
SHAPE_REFUSALS(SHAPE_REFUSAL)
BIAS_SHAPE_REFUSALS(SHAPE_REFUSAL)
DATA_REFUSALS(DATA_REFUSAL)
BIAS_DATA_REFUSALS(DATA_REFUSAL)
KERNEL_REFUSALS(KERNEL_REFUSAL)

#define REFUSAL_TEST(name, spoiling, status, words)                                                \
    {#name " is refused", is_refused, NULL, NULL, &refusal_##name},

int main(void) {
    ADD_TESTS(SHAPE_REFUSALS(REFUSAL_TEST));
    ADD_TESTS(BIAS_SHAPE_REFUSALS(REFUSAL_TEST));
    ADD_TESTS(DATA_REFUSALS(REFUSAL_TEST));
    ADD_TESTS(BIAS_DATA_REFUSALS(REFUSAL_TEST));
    ADD_TESTS(KERNEL_REFUSALS(REFUSAL_TEST));
    return run_all_tests(NULL, NULL);
}
