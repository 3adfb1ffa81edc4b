/*
 * Appending to a cache: what is written is compared with a plain loop, and refusals are tested.
 */
#include "support.h"

#include "kernels/cpu/convert.h"

#include <math.h>

enum {
    BATCH = 2,
    NEW = 3, /* tokens of each sequence, in K and V and in Q */
    HEADS = 4,
    HEADS_KV = 2,
    D = 8,
    PAIRS = 3, /* that turn */
    PAGE_SIZE = 4,
    N_PAGES = 6,
    N_IDS = 3, /* of a sequence */
    N_POSITIONS = 20,
    N_NEW = BATCH * NEW * HEADS_KV * D,
    N_CACHE = N_PAGES * PAGE_SIZE * HEADS_KV * D,
    N_Q = BATCH * NEW * HEADS * D
};

/* A call writes these, with gaps that it must not write. */
typedef struct outputs {
    float k[N_CACHE + 1];
    float v[N_CACHE + 1];
    float q[N_Q + 1];
    float q_out[N_Q + 1];
    int32_t after[BATCH];
} outputs_t;

/* A valid call in fp32, with pages, rotary and Q, that owns its arrays. */
typedef struct call {
    flash_kv_append_args_t args;
    flash_paging_t paging;
    flash_rotary_t rotary;
    flash_quant_t quant;
    float k_new[N_NEW];
    float v_new[N_NEW];
    float cos[N_POSITIONS * PAIRS];
    float sin[N_POSITIONS * PAIRS];
    float scale[BATCH * HEADS_KV];
    int32_t used[BATCH];
    int32_t table[BATCH * N_IDS];
    int32_t rows[BATCH];
    int64_t rows64[BATCH];
    int32_t indptr[BATCH + 1];
    int32_t ends[BATCH + 1];
    int64_t slots[BATCH * NEW];
    int64_t positions[BATCH * NEW];
    int32_t start[BATCH];
    outputs_t out;
    outputs_t before;
} call_t;

static void fill(float *values, int n, uint32_t seed) {
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
}

static void set_args(call_t *c) {
    flash_kv_append_args_t a = FLASH_KV_APPEND_ARGS_INIT;
    a.dtype = FLASH_DTYPE_FP32;
    a.k_new = flash_tensor_bshd(c->k_new, NEW, HEADS_KV, D);
    a.v_new = flash_tensor_bshd(c->v_new, NEW, HEADS_KV, D);
    a.k = flash_tensor_bshd(c->out.k, PAGE_SIZE, HEADS_KV, D);
    a.v = flash_tensor_bshd(c->out.v, PAGE_SIZE, HEADS_KV, D);
    a.q = flash_tensor_bshd(c->out.q, NEW, HEADS, D);
    a.q_out = flash_tensor_bshd(c->out.q_out, NEW, HEADS, D);
    a.seqused_k = c->used;
    a.seqused_k_out = c->out.after;
    a.batch = BATCH;
    a.seqlen_new = a.seqlen_q = NEW;
    a.n_heads = HEADS;
    a.n_heads_kv = HEADS_KV;
    a.d_head = D;
    a.paging = &c->paging;
    a.rotary = &c->rotary;
    c->args = a;
}

static void set_parts(call_t *c) {
    c->paging = (flash_paging_t)FLASH_PAGING_INIT;
    c->paging.page_size = PAGE_SIZE;
    c->paging.n_pages = N_PAGES;
    c->paging.page_table = c->table;
    c->paging.page_table_stride = N_IDS;
    c->rotary = (flash_rotary_t)FLASH_ROTARY_INIT;
    c->rotary.cos = c->cos;
    c->rotary.sin = c->sin;
    c->rotary.stride_position = PAIRS;
    c->rotary.n_positions = N_POSITIONS;
    c->rotary.rotary_dim = 2 * PAIRS;
    c->quant = (flash_quant_t)FLASH_QUANT_INIT;
    c->quant.k_scale = c->quant.v_scale = c->scale;
    c->quant.k_scale_stride_batch = c->quant.v_scale_stride_batch = HEADS_KV;
    c->quant.k_scale_stride_head = c->quant.v_scale_stride_head = 1;
}

/* Sequence 0 has its new tokens in pages 4 and 1, sequence 1 in pages 5 and 0. */
static void set_arrays(call_t *c) {
    static const int32_t table[] = {4, 1, -1, -1, 5, 0}, used[] = {2, 6};
    static const int64_t slots[] = {0, 23, -1, 5, 6, 11}, positions[] = {0, 1, 2, 19, 5, 3};
    memcpy(c->table, table, sizeof table);
    memcpy(c->used, used, sizeof used);
    memcpy(c->slots, slots, sizeof slots);
    memcpy(c->positions, positions, sizeof positions);
    for (int b = 0; b <= BATCH; b++) {
        c->indptr[b] = b * N_IDS;
        c->ends[b] = b * NEW;
    }
    for (int b = 0; b < BATCH; b++)
        c->rows64[b] = c->rows[b] = c->start[b] = b;
    for (int i = 0; i < BATCH * HEADS_KV; i++)
        c->scale[i] = 0.5f;
}

static call_t *create(void) {
    call_t *c = calloc(1, sizeof *c);
    assert_non_null(c);
    set_parts(c);
    set_arrays(c);
    fill(c->k_new, N_NEW, 1);
    fill(c->v_new, N_NEW, 2);
    fill(c->cos, N_POSITIONS * PAIRS, 3);
    fill(c->sin, N_POSITIONS * PAIRS, 4);
    memset(&c->out, 0xff, sizeof c->out);
    fill(c->out.q, N_Q, 5);
    c->before = c->out;
    set_args(c);
    return c;
}

/* ---- What is written ---- */

/* Turns a row to a position, in place: halves of the first 2 * PAIRS elements. */
static void turn(const call_t *c, float *row, int64_t position) {
    const float *cosine = c->cos + position * PAIRS, *sine = c->sin + position * PAIRS;
    for (int i = 0; i < PAIRS; i++) {
        const float x = row[i], y = row[i + PAIRS];
        const float xc = x * cosine[i], ys = y * sine[i], xs = x * sine[i], yc = y * cosine[i];
        row[i] = xc - ys;
        row[i + PAIRS] = xs + yc;
    }
}

static void expect(const call_t *c, outputs_t *out) {
    *out = c->before;
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < NEW; i++) {
            const int key = c->used[b] + i, token = b * NEW + i;
            const int page = c->table[b * N_IDS + key / PAGE_SIZE];
            const int place = (page * PAGE_SIZE + key % PAGE_SIZE) * HEADS_KV * D;
            memcpy(out->k + place, c->k_new + token * HEADS_KV * D, HEADS_KV * D * sizeof(float));
            memcpy(out->v + place, c->v_new + token * HEADS_KV * D, HEADS_KV * D * sizeof(float));
            memcpy(out->q_out + token * HEADS * D, out->q + token * HEADS * D,
                   HEADS * D * sizeof(float));
            for (int h = 0; h < HEADS_KV; h++)
                turn(c, out->k + place + h * D, key);
            for (int h = 0; h < HEADS; h++)
                turn(c, out->q_out + (token * HEADS + h) * D, key);
        }
    for (int b = 0; b < BATCH; b++)
        out->after[b] = c->used[b] + NEW;
}

TEST(tokens_go_to_their_pages) {
    call_t *c = create();
    outputs_t expected;
    expect(c, &expected);
    assert_success(flash_kv_append(&c->args, NULL));
    assert_memory_equal(&c->out, &expected, sizeof expected);
    free(c);
}

TEST(q_is_turned_in_place) {
    call_t *c = create();
    outputs_t expected;
    expect(c, &expected);
    memcpy(expected.q, expected.q_out, sizeof expected.q);
    memcpy(expected.q_out, c->before.q_out, sizeof expected.q_out);
    c->args.q_out.data = NULL;
    assert_success(flash_kv_append(&c->args, NULL));
    assert_memory_equal(&c->out, &expected, sizeof expected);
    free(c);
}

/* Slot -1 is padding; what it would turn to does not matter. */
TEST(tokens_go_to_their_slots) {
    call_t *c = create();
    c->paging.page_table = NULL;
    c->paging.page_table_stride = 0;
    c->args.slot_mapping = c->slots;
    c->args.seqused_k = NULL;
    c->args.seqused_k_out = NULL;
    c->args.rotary = NULL;
    c->args.seqlen_q = 0;
    memset(&c->before, 0xff, sizeof c->before);
    memcpy(c->before.q, c->out.q, sizeof c->out.q);
    for (int token = 0; token < BATCH * NEW; token++) {
        const size_t row = HEADS_KV * D;
        if (c->slots[token] < 0)
            continue;
        memcpy(c->before.k + c->slots[token] * (int64_t)row, c->k_new + (size_t)token * row,
               row * sizeof(float));
        memcpy(c->before.v + c->slots[token] * (int64_t)row, c->v_new + (size_t)token * row,
               row * sizeof(float));
    }
    assert_success(flash_kv_append(&c->args, NULL));
    assert_memory_equal(&c->out, &c->before, sizeof c->out);
    free(c);
}

/* The other columns of a token are between its heads, and stay. */
TEST(v_may_have_another_head_dimension) {
    enum { D_V = 3 };
    call_t *c = create();
    outputs_t expected;
    expect(c, &expected);
    for (int i = 0; i < N_CACHE; i++)
        if (i % D >= D_V)
            expected.v[i] = c->before.v[i];
    c->args.d_head_v = D_V;
    assert_success(flash_kv_append(&c->args, NULL));
    assert_memory_equal(&c->out, &expected, sizeof expected);
    free(c);
}

/* Strides and pointers of what the call does not have, and of axes of length 1, do not matter. */
TEST(what_is_not_there_does_not_matter) {
    call_t *c = create();
    c->args.v_new.data = c->args.v.data = NULL;
    c->args.v.dtype = 77;
    c->args.v_new.stride_seq = INT64_MIN;
    c->args.seqlen_q = 0;
    c->args.q.dtype = 77;
    c->args.n_heads = -5;
    assert_success(flash_kv_append(&c->args, NULL));
    assert_memory_equal(c->out.v, c->before.v, sizeof c->out.v);
    assert_int_equal(c->out.after[1], c->used[1] + NEW);
    free(c);
}

TEST(an_empty_batch_needs_nothing) {
    call_t *c = create();
    c->args.batch = 0;
    c->args.seqused_k = NULL;
    c->args.seqused_k_out = NULL;
    c->args.k.data = c->args.v.data = c->args.k_new.data = NULL;
    assert_success(flash_kv_append(&c->args, NULL));
    c->args.cu_seqlens_new = c->args.cu_seqlens_q = c->ends; /* no token is of a sequence */
    c->args.k_new.data = c->k_new;
    assert_success(flash_kv_append(&c->args, NULL));
    assert_memory_equal(&c->out, &c->before, sizeof c->out);
    free(c);
}

/* One row of the tables needs no stride. */
TEST(a_table_of_one_position_has_no_stride) {
    call_t *c = create();
    c->rotary.n_positions = 1;
    c->rotary.stride_position = INT64_MAX;
    memset(c->positions, 0, sizeof c->positions);
    c->rotary.positions = c->positions;
    assert_success(flash_kv_append(&c->args, NULL));
    free(c);
}

/* Ids of pages that no new token is in may be anything. */
TEST(pages_without_new_tokens_are_not_followed) {
    call_t *c = create();
    c->table[N_IDS - 1] = INT32_MIN;
    c->table[N_IDS] = INT32_MAX;
    assert_success(flash_kv_append(&c->args, NULL));
    free(c);
}

/* ---- Threads: this also runs under ThreadSanitizer ---- */

enum { SEQLEN = 600, ROW = 4 * 64 };

/* Describes SEQLEN tokens for a contiguous cache of another type, enough for several threads. */
static flash_kv_append_args_t large_args(const float *from, void *to, const int32_t *used) {
    flash_kv_append_args_t args = FLASH_KV_APPEND_ARGS_INIT;
    args.dtype = FLASH_DTYPE_FP32;
    args.k_new = flash_tensor_bshd((void *)(uintptr_t)from, SEQLEN, 4, 64);
    args.k = flash_tensor_bshd(to, SEQLEN, 4, 64);
    args.k.dtype = FLASH_DTYPE_BF16;
    args.seqused_k = used;
    args.batch = 1;
    args.seqlen_new = args.seqlen_k = SEQLEN;
    args.n_heads_kv = 4;
    args.d_head = 64;
    return args;
}

TEST_WITH_TEARDOWN(threads_do_not_change_bits, default_threads) {
    static float from[SEQLEN * ROW];
    static uint16_t to[2][SEQLEN * ROW];
    const int32_t used = 0;
    fill(from, SEQLEN * ROW, 8);
    for (int i = 0; i < 2; i++) {
        const flash_kv_append_args_t args = large_args(from, to[i], &used);
        assert_success(flash_set_num_threads(1 + 3 * i));
        assert_success(flash_kv_append(&args, NULL));
    }
    assert_memory_equal(to[0], to[1], sizeof to[0]);
    assert_int_equal(to[0][SEQLEN * ROW - 1], bf16_from_fp32(from[SEQLEN * ROW - 1]));
}

static void count_and_run(void *context, int32_t n_tasks, flash_task_t task, void *argument) {
    *(int32_t *)context += n_tasks;
    for (int32_t i = n_tasks; i-- > 0;)
        task(argument, i);
}

/* Large work goes to the call's executor. */
TEST(an_executor_runs_the_call) {
    static float from[SEQLEN * ROW];
    static uint16_t to[SEQLEN * ROW];
    const int32_t used = 0;
    int32_t n_tasks = 0;
    flash_executor_t executor = FLASH_EXECUTOR_INIT;
    flash_kv_append_args_t args = large_args(from, to, &used);
    fill(from, SEQLEN * ROW, 9);
    executor.run = count_and_run;
    executor.context = &n_tasks;
    executor.n_workers = 3;
    args.executor = &executor;
    assert_success(flash_kv_append(&args, NULL));
    assert_int_equal(n_tasks, 3);
    for (int i = 0; i < SEQLEN * ROW; i++)
        assert_int_equal(to[i], bf16_from_fp32(from[i]));
}

/* ---- e4m3 ---- */

/* Rounds by searching all codes: the nearest, the even one of two. */
static uint8_t nearest_code(double value) {
    uint8_t best = 0;
    for (int code = 1; code < 0x7f; code++) {
        const double distance = fabs(fabs(value) - (double)fp32_from_e4m3((uint8_t)code));
        const double least = fabs(fabs(value) - (double)fp32_from_e4m3(best));
        if (distance < least || (distance == least && code % 2 == 0))
            best = (uint8_t)code;
    }
    return (uint8_t)(best | (signbit(value) ? 0x80 : 0));
}

static void check_around(float value) {
    const uint32_t bits = fp32_to_bits(value);
    for (int64_t step = -3; step <= 3; step++) {
        const float near = fp32_from_bits((uint32_t)((int64_t)bits + step));
        if (isnan(near))
            continue;
        assert_int_equal(e4m3_from_fp32(near), nearest_code((double)near));
        assert_int_equal(e4m3_from_fp32(-near), nearest_code((double)-near));
    }
}

/* Every code, every place half-way between two, and both neighbours of each in fp32. */
TEST(e4m3_rounds_to_the_nearest_code) {
    for (int code = 0; code < 0x7e; code++) {
        const float low = fp32_from_e4m3((uint8_t)code), high = fp32_from_e4m3((uint8_t)(code + 1));
        assert_int_equal(e4m3_from_fp32(low), code);
        if (code > 0)
            check_around(low);
        check_around((low + high) / 2);
    }
    check_around(448);
    check_around(464);
    check_around(0x1p-60f);
    assert_int_equal(e4m3_from_fp32(0.0f), 0);
    assert_int_equal(e4m3_from_fp32(-0.0f), 0x80);
    assert_int_equal(e4m3_from_fp32(INFINITY), 0x7e);
    assert_int_equal(e4m3_from_fp32(-INFINITY), 0xfe);
    assert_int_equal(e4m3_from_fp32(3e38f), 0x7e);
    assert_int_equal(e4m3_from_fp32(NAN), 0x7f);
    assert_int_equal(e4m3_from_fp32(-NAN), 0x7f);
}

TEST(e4m3_rounds_random_numbers_alike) {
    uint32_t bits = 1;
    for (int i = 0; i < 200000; i++) {
        bits = bits * 1664525u + 1013904223u;
        /* Exponents of e4m3, and some beyond on both sides. */
        const uint32_t near = (bits & 0x807fffff) | (0x37800000 + (bits >> 9) % 0x0e000000);
        const float value = fp32_from_bits(near);
        if (!isnan(value))
            assert_int_equal(e4m3_from_fp32(value), nearest_code((double)value));
    }
}

/* ---- Refusals ---- */

typedef struct refusal {
    void (*spoil)(call_t *c);
    flash_status_t status;
    const char *words;
} refusal_t;

#define INVALID     FLASH_ERROR_INVALID_ARGUMENT
#define UNSUPPORTED FLASH_ERROR_UNSUPPORTED

static void use_slots(call_t *c) {
    c->paging.page_table = NULL;
    c->paging.page_table_stride = 0;
    c->args.slot_mapping = c->slots;
    c->args.seqused_k_out = NULL;
}

static void use_indptr(call_t *c) {
    c->paging.page_table_stride = 0;
    c->paging.page_indptr = c->indptr;
}

static void use_rows_as_slots(call_t *c) {
    c->paging.page_table = NULL;
    c->paging.page_table_stride = 0;
    c->paging.page_rows = c->rows;
    c->used[0] = c->used[1] = 0;
}

static void use_rows64_as_slots(call_t *c) {
    use_rows_as_slots(c);
    c->paging.page_rows = NULL;
    c->paging.page_rows64 = c->rows64;
}

static void use_e4m3(call_t *c) {
    c->args.k.dtype = c->args.v.dtype = FLASH_DTYPE_E4M3;
    c->args.quant = &c->quant;
}

static void use_ends(call_t *c) {
    c->args.cu_seqlens_new = c->args.cu_seqlens_q = c->ends;
    c->args.seqlen_new = c->args.seqlen_q = BATCH * NEW;
}

/* Checks of alignment come before that of the device. */
static void use_cuda(call_t *c) {
    c->args.device = ABSENT_CUDA_DEVICE;
}

#define ODD(pointer) ((void *)((uintptr_t)(pointer) + 1))

#define REFUSALS(X)                                                                                \
    X(struct_size_huge, c->args.struct_size = UINT32_MAX, INVALID, "struct_size is 4294967295")    \
    X(device_negative, c->args.device = -1, INVALID, "device is 0xffffffff")                       \
    X(device_cuda, use_cuda(c), ABSENT_DEVICE_STATUS, "CUDA device 1000")                          \
    X(device_cuda_without_q_and_v,                                                                 \
      (use_cuda(c), c->args.seqlen_q = 0, c->args.q.dtype = c->args.v.dtype = 9,                   \
       c->args.v.data = c->args.v_new.data = NULL),                                                \
      ABSENT_DEVICE_STATUS, "CUDA device 1000")                                                    \
    X(dtype, c->args.dtype = 9, INVALID, "dtype is 9")                                             \
    X(k_new_dtype, c->args.k_new.dtype = 9, INVALID, "k_new.dtype is 9")                           \
    X(v_new_dtype, c->args.v_new.dtype = 9, INVALID, "v_new.dtype is 9")                           \
    X(k_dtype, c->args.k.dtype = -9, INVALID, "k.dtype is -9")                                     \
    X(v_dtype, c->args.v.dtype = 9, INVALID, "v.dtype is 9")                                       \
    X(q_dtype, c->args.q.dtype = 9, INVALID, "q.dtype is 9")                                       \
    X(q_out_dtype, c->args.q_out.dtype = 9, INVALID, "q_out.dtype is 9")                           \
    X(new_types_differ, c->args.v_new.dtype = FLASH_DTYPE_FP16, UNSUPPORTED,                       \
      "k_new.dtype is 3 and v_new.dtype is 1")                                                     \
    X(types_differ, c->args.k.dtype = FLASH_DTYPE_E4M3, UNSUPPORTED,                               \
      "k.dtype is 4 and v.dtype is 3: where one of K and V is of FLASH_DTYPE_E4M3, both are")      \
    X(new_blocks, c->args.k_new.dtype = c->args.v_new.dtype = FLASH_DTYPE_Q8_0, UNSUPPORTED,       \
      "k_new.dtype is FLASH_DTYPE_Q8_0 (6): new tokens are of fp16, bf16 or fp32")                 \
    X(blocks_that_d_head_cuts, c->args.v.dtype = FLASH_DTYPE_Q4_0, INVALID,                        \
      "d_head_v is 8: not a multiple of 32, the columns of a block of FLASH_DTYPE_Q4_0")           \
    X(e4m3_into_fp32, c->args.k_new.dtype = c->args.v_new.dtype = FLASH_DTYPE_E4M3, UNSUPPORTED,   \
      "k.dtype is 3: new tokens of e4m3")                                                          \
    X(q_blocks, c->args.q.dtype = FLASH_DTYPE_Q8_0, UNSUPPORTED, "q.dtype is FLASH_DTYPE_Q8_0")    \
    X(flags, c->args.flags = FLASH_FLAG_CAUSAL, INVALID, "flags is 0x1")                           \
    X(page_scales_without_pages,                                                                   \
      (use_e4m3(c), c->args.flags = FLASH_FLAG_PAGE_SCALES, c->args.paging = NULL,                 \
       c->args.seqlen_k = 0),                                                                      \
      INVALID, "FLASH_FLAG_PAGE_SCALES, and paging is NULL: there are no pages")                   \
    X(page_scales_without_scales, c->args.flags = FLASH_FLAG_PAGE_SCALES, INVALID,                 \
      "FLASH_FLAG_PAGE_SCALES, and quant is NULL: there are no scales")                            \
    X(batch_negative, c->args.batch = -1, INVALID, "batch is -1")                                  \
    X(batch_huge, c->args.batch = (int64_t)1 << 31, INVALID, "batch is 2147483648")                \
    X(seqlen_new_negative, c->args.seqlen_new = -1, INVALID, "seqlen_new is -1")                   \
    X(seqlen_new_huge, c->args.seqlen_new = (int64_t)1 << 30, INVALID,                             \
      "seqlen_new is 1073741824 and batch 2")                                                      \
    X(seqlen_q_negative, c->args.seqlen_q = -1, INVALID, "seqlen_q is -1")                         \
    X(seqlen_q_huge, c->args.seqlen_q = (int64_t)1 << 30, INVALID,                                 \
      "seqlen_q is 1073741824 and batch 2")                                                        \
    X(seqlen_k_negative, c->args.seqlen_k = -1, INVALID, "seqlen_k is -1")                         \
    X(d_head_zero, c->args.d_head = 0, INVALID, "d_head is 0")                                     \
    X(d_head_v_negative, c->args.d_head_v = -8, INVALID, "d_head_v is -8")                         \
    X(d_head_v_huge, c->args.d_head_v = (int64_t)1 << 31, INVALID, "d_head_v is 2147483648")       \
    X(d_head_v_beyond_the_strides, c->args.d_head_v = 9, INVALID, "v overlaps itself")             \
    X(too_many_elements_of_v, c->args.d_head_v = (int64_t)1 << 30, INVALID,                        \
      "n_heads_kv is 2 and d_head_v 1073741824: twice their product")                              \
    X(n_heads_kv_zero, c->args.n_heads_kv = 0, INVALID, "n_heads_kv is 0")                         \
    X(n_heads_zero, c->args.n_heads = 0, INVALID, "n_heads is 0")                                  \
    X(too_many_elements, c->args.n_heads_kv = (int64_t)1 << 28, INVALID,                           \
      "n_heads_kv is 268435456 and d_head 8")                                                      \
    X(too_many_elements_of_q, c->args.n_heads = (int64_t)1 << 28, INVALID,                         \
      "n_heads is 268435456 and d_head 8")                                                         \
    X(q_without_rotary, c->args.rotary = NULL, INVALID, "seqlen_q is 3 without rotary")            \
    X(slots_without_paging, (use_slots(c), c->args.paging = NULL), INVALID,                        \
      "slot_mapping is given without paging")                                                      \
    X(no_place, c->args.seqused_k = NULL, INVALID, "seqused_k and slot_mapping are NULL")          \
    X(no_length_for_q, (c->args.seqlen_new = 0, c->args.seqused_k = NULL), INVALID,                \
      "seqused_k_out is given without seqused_k")                                                  \
    X(slots_and_lengths_out, (use_slots(c), c->args.seqused_k_out = c->out.after), INVALID,        \
      "seqused_k_out is given with slot_mapping")                                                  \
    X(lengths_in_place, c->args.seqused_k_out = c->used, INVALID,                                  \
      "seqused_k_out overlaps seqused_k")                                                          \
    X(lengths_overlap, c->args.seqused_k_out = c->used + 1, INVALID,                               \
      "seqused_k_out overlaps seqused_k")                                                          \
    X(slots_and_table, c->args.slot_mapping = (c->args.seqused_k_out = NULL, c->slots), INVALID,   \
      "page_table or paging.page_rows is given with slot_mapping")                                 \
    X(slots_and_rows, (use_slots(c), c->paging.page_rows = c->rows), INVALID,                      \
      "given with slot_mapping")                                                                   \
    X(slots_and_rows64, (use_slots(c), c->paging.page_rows64 = c->rows64), INVALID,                \
      "given with slot_mapping")                                                                   \
    X(rows_twice, (c->paging.page_rows = c->rows, c->paging.page_rows64 = c->rows64), INVALID,     \
      "paging.page_rows and paging.page_rows64 are given")                                         \
    X(slots_and_indptr, (use_slots(c), c->paging.page_indptr = c->indptr), INVALID,                \
      "page_indptr, v_page_table or page_table_stride")                                            \
    X(slots_and_v_table, (use_slots(c), c->paging.v_page_table = c->table), INVALID,               \
      "page_indptr, v_page_table or page_table_stride")                                            \
    X(slots_and_stride, (use_slots(c), c->paging.page_table_stride = 1), INVALID,                  \
      "page_indptr, v_page_table or page_table_stride")                                            \
    X(no_table, (c->paging.page_table = NULL, c->paging.page_table_stride = 0), INVALID,           \
      "paging.page_table and paging.page_rows are NULL")                                           \
    X(page_size_zero, c->paging.page_size = 0, INVALID, "paging.page_size is 0")                   \
    X(n_pages_negative, c->paging.n_pages = -1, INVALID, "paging.n_pages is -1")                   \
    X(paging_reserved, c->paging.reserved32 = 1, UNSUPPORTED, "paging.reserved32")                 \
    X(rotary_size, c->rotary.struct_size = 1, INVALID, "flash_rotary_t.struct_size is 1")          \
    X(rotary_flags, c->rotary.flags = 8, INVALID, "rotary.flags is 0x8: the known ones are 0x3")   \
    X(rotary_reserved, c->rotary.reserved32 = 1, UNSUPPORTED, "rotary.reserved32")                 \
    X(rotary_dtype, c->rotary.dtype = 9, INVALID, "rotary.dtype is 9")                             \
    X(rotary_e4m3, c->rotary.dtype = FLASH_DTYPE_E4M3, UNSUPPORTED,                                \
      "rotary.dtype is 4: cosines and sines are of fp16")                                          \
    X(rotary_latent, c->rotary.dtype = FLASH_DTYPE_LATENT_E4M3, UNSUPPORTED, "rotary.dtype is 5")  \
    X(no_positions, c->rotary.n_positions = 0, INVALID, "rotary.n_positions is 0")                 \
    X(rotary_dim_zero, c->rotary.rotary_dim = 0, INVALID, "rotary.rotary_dim is 0")                \
    X(rotary_dim_odd, c->rotary.rotary_dim = 5, INVALID, "rotary.rotary_dim is 5")                 \
    X(rotary_dim_large, c->rotary.rotary_dim = 10, INVALID,                                        \
      "rotary.rotary_dim is 10: not an even number within 2 ... 8")                                \
    X(no_cos, c->rotary.cos = NULL, INVALID, "rotary.cos is NULL")                                 \
    X(no_sin, c->rotary.sin = NULL, INVALID, "rotary.sin is NULL")                                 \
    X(stride_position, c->rotary.stride_position = 2, INVALID, "rotary.stride_position is 2")      \
    X(stride_position_huge, c->rotary.stride_position = INT64_MAX / 8, INVALID,                    \
      "rotary.cos overflows")                                                                      \
    X(positions_and_start, c->rotary.positions = (c->rotary.start = c->start, c->positions),       \
      INVALID, "rotary.positions and rotary.start are given")                                      \
    X(positions_of_q, (c->rotary.positions = c->positions, c->args.seqlen_q = 2), INVALID,         \
      "k_new has 6 tokens, but q 4")                                                               \
    X(positions_of_more_q, (c->rotary.positions = c->positions, c->args.seqlen_new = 2), INVALID,  \
      "k_new has 4 tokens, but q 6")                                                               \
    X(positions_at_start,                                                                          \
      (c->rotary.positions = c->positions, c->rotary.flags = FLASH_ROTARY_Q_AT_START), INVALID,    \
      "FLASH_ROTARY_Q_AT_START, and rotary.positions is given")                                    \
    X(nothing_says_where, (use_slots(c), c->args.seqused_k = NULL), INVALID,                       \
      "rotary has neither positions nor start, and seqused_k is NULL")                             \
    X(k_new_null, c->args.k_new.data = NULL, INVALID, "k_new.data is NULL")                        \
    X(v_new_null, c->args.v_new.data = NULL, INVALID, "v_new.data is NULL")                        \
    X(k_null, c->args.k.data = NULL, INVALID, "k.data is NULL")                                    \
    X(v_null, c->args.v.data = NULL, INVALID, "v.data is NULL")                                    \
    X(q_null, c->args.q.data = NULL, INVALID, "q.data is NULL")                                    \
    X(k_new_stride, c->args.k_new.stride_seq = -1, INVALID, "k_new.stride_seq is -1")              \
    X(v_new_stride, c->args.v_new.stride_seq = INT64_MIN / 2, INVALID,                             \
      "v_new.stride_seq is -4611686018427387904")                                                  \
    X(k_new_repeats, c->args.k_new.stride_seq = 0, INVALID, "FLASH_FLAG_BROADCAST says")           \
    X(k_repeats, (c->args.flags = FLASH_FLAG_BROADCAST, c->args.k.stride_seq = 0), INVALID,        \
      "no place of an output may repeat")                                                          \
    X(q_out_repeats, (c->args.flags = FLASH_FLAG_BROADCAST, c->args.q_out.stride_seq = 0),         \
      INVALID, "no place of an output may repeat")                                                 \
    X(v_overlaps_itself, c->args.v.stride_seq = 1, INVALID, "v overlaps itself")                   \
    X(k_new_reserved, c->args.k_new.reserved[3] = 1, UNSUPPORTED, "k_new.reserved")                \
    X(v_reserved, c->args.v.reserved32 = 1, UNSUPPORTED, "v.reserved")                             \
    X(q_reserved, c->args.q.reserved[0] = 1, UNSUPPORTED, "q.reserved")                            \
    X(k_overflows, c->args.k.stride_batch = INT64_MAX / 2, INVALID, "k overflows")                 \
    X(k_in_k_new, c->args.k_new.data = c->out.k, INVALID, "k overlaps k_new")                      \
    X(k_in_v_new, c->args.v_new.data = c->out.k, INVALID, "k overlaps v_new")                      \
    X(k_is_v,                                                                                      \
      (c->args.paging = NULL, c->args.seqlen_k = PAGE_SIZE, c->used[0] = c->used[1] = 0,           \
       c->args.v.data = c->out.k),                                                                 \
      INVALID, "v overlaps k")                                                                     \
    X(v_in_k_new, c->args.k_new.data = c->out.v, INVALID, "v overlaps k_new")                      \
    X(k_is_q, c->args.q.data = c->out.k, INVALID, "k overlaps q")                                  \
    X(v_is_q, c->args.q.data = c->out.v, INVALID, "v overlaps q")                                  \
    X(q_out_is_k, c->args.q_out.data = c->out.k, INVALID, "q_out overlaps k")                      \
    X(q_out_is_v, c->args.q_out.data = c->out.v, INVALID, "q_out overlaps v")                      \
    X(q_out_is_k_new, c->args.q_out.data = c->k_new, INVALID, "q_out overlaps k_new")              \
    X(q_out_is_v_new, c->args.q_out.data = c->v_new, INVALID, "q_out overlaps v_new")              \
    X(q_out_near_q, c->args.q_out.data = c->out.q + D, INVALID, "q_out overlaps q")                \
    X(q_out_is_q_of_another_type,                                                                  \
      (c->args.q_out.data = c->out.q, c->args.q_out.dtype = FLASH_DTYPE_BF16), INVALID,            \
      "q_out overlaps q")                                                                          \
    X(scales_of_fp32, c->args.quant = &c->quant, INVALID,                                          \
      "quant.k_scale is given, and k.dtype is 3")                                                  \
    X(scale_stride, (use_e4m3(c), c->quant.v_scale_stride_head = -1), INVALID,                     \
      "quant.v_scale_stride_head is -1")                                                           \
    X(scales_in_k, (use_e4m3(c), c->quant.k_scale = c->out.k), INVALID,                            \
      "k overlaps quant.k_scale")                                                                  \
    X(scales_in_v, (use_e4m3(c), c->quant.k_scale = c->out.v), INVALID,                            \
      "v overlaps quant.k_scale")                                                                  \
    X(ends_from_one, (use_ends(c), c->ends[0] = 1), INVALID, "cu_seqlens_new[0] is 1")             \
    X(ends_descend, (use_ends(c), c->ends[1] = 9), INVALID, "cu_seqlens_new[2] is 6: below the 9") \
    X(ends_beyond, (use_ends(c), c->args.seqlen_new = 5), INVALID,                                 \
      "cu_seqlens_new[2] is 6: the tensor has 5 tokens")                                           \
    X(q_ends_beyond, (use_ends(c), c->args.seqlen_q = 5), INVALID,                                 \
      "cu_seqlens_q[2] is 6: the tensor has 5 tokens")                                             \
    X(used_negative, c->used[1] = -3, INVALID, "seqused_k[1] is -3")                               \
    X(slot_beyond, (use_slots(c), c->slots[4] = 24), INVALID,                                      \
      "slot_mapping[4] is 24: the cache has 24 slots")                                             \
    X(slot_far_beyond, (use_slots(c), c->slots[4] = INT64_MAX), INVALID,                           \
      "slot_mapping[4] is 9223372036854775807")                                                    \
    X(beyond_the_pages, (c->used[0] = 10, c->table[2] = 3), INVALID,                               \
      "new token 2 of sequence 0 would be its key 12: the cache holds 12 keys")                    \
    X(elements_of_a_token, (c->args.n_heads_kv = 1 << 16, c->args.d_head = 1 << 14), INVALID,      \
      "n_heads_kv is 65536 and d_head 16384: twice their product, K and V of a token, is more")    \
    X(elements_of_a_query, c->args.n_heads = 1 << 27, INVALID,                                     \
      "n_heads is 134217728 and d_head 8: twice their product")                                    \
    X(beyond_the_bound_of_pages, (c->used[0] = 9, c->table[2] = 3, c->args.seqlen_k = 11),         \
      INVALID, "new token 2 of sequence 0 would be its key 11: the cache holds 11 keys")           \
    X(beyond_31_bits,                                                                              \
      (c->paging.page_table_stride = INT32_MAX, c->args.batch = 1, c->used[0] = INT32_MAX),        \
      INVALID, "would be its key 2147483647: the cache holds 2147483647 keys")                     \
    X(beyond_the_contiguous_cache,                                                                 \
      (c->args.paging = NULL, c->args.seqlen_k = 4, c->args.batch = 1), INVALID,                   \
      "new token 2 of sequence 0 would be its key 4: the cache holds 4 keys")                      \
    X(page_negative, c->table[1] = -1, INVALID,                                                    \
      "page_table: new token 2 of sequence 0, its key 4, has no page or slot within 0 ... 5")      \
    X(page_beyond, c->table[5] = 6, INVALID,                                                       \
      "page_table: new token 2 of sequence 1, its key 8, has no page")                             \
    X(v_page_beyond,                                                                               \
      (c->paging.v_page_table = memset(c->table + N_IDS, 0x7f, N_IDS * sizeof *c->table),          \
       c->args.batch = 1, c->args.seqused_k = c->used),                                            \
      INVALID, "v_page_table: new token 0 of sequence 0, its key 2")                               \
    X(row_negative, (c->paging.page_rows = c->rows, c->rows[1] = -2), INVALID,                     \
      "page_rows[1] is -2: negative")                                                              \
    X(slot_of_a_sequence_negative, (use_rows_as_slots(c), c->rows[1] = -2), INVALID,               \
      "page_rows[1] is -2: negative")                                                              \
    X(slot_of_a_sequence_beyond, (use_rows_as_slots(c), c->rows[1] = 6), INVALID,                  \
      "page_rows: new token 0 of sequence 1, its key 0, has no page or slot within 0 ... 5")       \
    X(row64_negative, (c->paging.page_rows64 = c->rows64, c->rows64[1] = -2), INVALID,             \
      "page_rows64[1] is -2: not within 0 ... 2147483647")                                         \
    X(row64_beyond_32_bits, (c->paging.page_rows64 = c->rows64, c->rows64[1] = 1ll << 32),         \
      INVALID, "page_rows64[1] is 4294967296: not within 0 ... 2147483647")                        \
    X(slot64_of_a_sequence_beyond, (use_rows64_as_slots(c), c->rows64[1] = 6), INVALID,            \
      "page_rows64: new token 0 of sequence 1, its key 0, has no page or slot within 0 ... 5")     \
    X(rows64_misaligned, (use_cuda(c), c->paging.page_rows64 = ODD(c->rows64)), INVALID,           \
      "page_rows64 is 0x")                                                                         \
    X(indptr_negative, (use_indptr(c), c->indptr[0] = -1), INVALID,                                \
      "page_indptr[0] is -1: negative")                                                            \
    X(indptr_descends, (use_indptr(c), c->indptr[2] = 0), INVALID,                                 \
      "new token 0 of sequence 1 would be its key 6: the cache holds -12 keys")                    \
    X(position_beyond, c->rotary.n_positions = 8, INVALID,                                         \
      "new token 2 of sequence 1 is at position 8: the rotary tables have 0 ... 7")                \
    X(position_negative, (c->rotary.start = c->start, c->start[1] = -1), INVALID,                  \
      "new token 0 of sequence 1 is at position -1")                                               \
    X(position_of_q_beyond, (c->args.seqlen_q = 2, c->args.seqlen_new = 0, c->used[0] = 19),       \
      INVALID, "query 1 of sequence 0 is at position 20: the rotary tables have 0 ... 19")         \
    X(listed_position_beyond, (c->rotary.positions = c->positions, c->positions[4] = -7), INVALID, \
      "new token 1 of sequence 1 is at position -7")                                               \
    X(cos_misaligned, (use_cuda(c), c->rotary.cos = ODD(c->cos)), INVALID, "rotary.cos is 0x")     \
    X(sin_misaligned, (use_cuda(c), c->rotary.sin = ODD(c->sin)), INVALID, "rotary.sin is 0x")     \
    X(positions_misaligned, (use_cuda(c), c->rotary.positions = ODD(c->positions)), INVALID,       \
      "rotary.positions is 0x")                                                                    \
    X(start_misaligned, (use_cuda(c), c->rotary.start = ODD(c->start)), INVALID,                   \
      "rotary.start is 0x")                                                                        \
    X(k_new_misaligned, (use_cuda(c), c->args.k_new.data = ODD(c->k_new)), INVALID,                \
      "k_new.data is 0x")                                                                          \
    X(v_new_misaligned, (use_cuda(c), c->args.v_new.data = ODD(c->v_new)), INVALID,                \
      "v_new.data is 0x")                                                                          \
    X(k_misaligned, (use_cuda(c), c->args.k.data = ODD(c->out.k)), INVALID, "k.data is 0x")        \
    X(v_misaligned, (use_cuda(c), c->args.v.data = ODD(c->out.v)), INVALID, "v.data is 0x")        \
    X(q_misaligned, (use_cuda(c), c->args.q.data = ODD(c->out.q)), INVALID, "q.data is 0x")        \
    X(q_out_misaligned, (use_cuda(c), c->args.q_out.data = ODD(c->out.q_out)), INVALID,            \
      "q_out.data is 0x")                                                                          \
    X(used_misaligned, (use_cuda(c), c->args.seqused_k = ODD(c->used)), INVALID,                   \
      "seqused_k is 0x")                                                                           \
    X(after_misaligned, (use_cuda(c), c->args.seqused_k_out = ODD(c->out.after)), INVALID,         \
      "seqused_k_out is 0x")                                                                       \
    X(ends_misaligned, (use_cuda(c), c->args.cu_seqlens_new = ODD(c->ends)), INVALID,              \
      "cu_seqlens_new is 0x")                                                                      \
    X(q_ends_misaligned, (use_cuda(c), c->args.cu_seqlens_q = ODD(c->ends)), INVALID,              \
      "cu_seqlens_q is 0x")                                                                        \
    X(slots_misaligned, (use_cuda(c), use_slots(c), c->args.slot_mapping = ODD(c->slots)),         \
      INVALID, "slot_mapping is 0x")                                                               \
    X(table_misaligned, (use_cuda(c), c->paging.page_table = ODD(c->table)), INVALID,              \
      "page_table is 0x")                                                                          \
    X(scale_misaligned, (use_cuda(c), use_e4m3(c), c->quant.k_scale = ODD(c->scale)), INVALID,     \
      "quant.k_scale is 0x")

#define DEFINE_REFUSAL(name, spoiling, status, words)                                              \
    static void spoil_##name(call_t *c) {                                                          \
        spoiling;                                                                                  \
    }                                                                                              \
    static refusal_t refusal_##name = {spoil_##name, status, words};
REFUSALS(DEFINE_REFUSAL)

static void is_refused(void **state) {
    const refusal_t *r = *state;
    call_t *c = create();
    r->spoil(c);
    assert_refused(flash_kv_append(&c->args, NULL), r->status, r->words);
    assert_memory_equal(&c->out, &c->before, sizeof c->out);
    free(c);
}

TEST(no_arguments_are_refused) {
    assert_refused(flash_kv_append(NULL, NULL), INVALID, "NULL");
}

#define REFUSAL_TEST(name, spoiling, status, words)                                                \
    {#name " is refused", is_refused, NULL, NULL, &refusal_##name},

int main(void) {
    ADD_TESTS(REFUSALS(REFUSAL_TEST));
    return run_all_tests(NULL, NULL);
}
