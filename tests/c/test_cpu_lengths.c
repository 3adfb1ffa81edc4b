/*
 * Lengths may change while a call reads them. Workers see the same ones, within the tensors.
 */
#include "cpu/lengths.h"
#include "support.h"

#include "flashattn.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { BATCH = 4, SEQLEN = 10, TOTAL = 25, ROOM = 64 };

static _Alignas(64) int32_t memory[6 * ROOM];

static flash_params_t copied(const int32_t *cu_q, const int32_t *cu_k, const int32_t *used) {
    const cpu_totals_t totals = {TOTAL, TOTAL, {0, 0}};
    flash_params_t p = {.cu_seqlens_q = cu_q,
                        .cu_seqlens_k = cu_k,
                        .seqused_k = used,
                        .batch = BATCH,
                        .seqlen_q = SEQLEN,
                        .seqlen_k = SEQLEN};
    assert_true(cpu_lengths_size(&p) <= sizeof memory);
    assert_int_equal(cpu_lengths_size(&p) % 64, 0);
    cpu_lengths_copy(&p, &totals, memory);
    return p;
}

TEST(lengths_that_do_not_change_are_copied) {
    const int32_t cu_q[] = {0, 10, 10, 13, 20}, cu_k[] = {0, 1, 5, 15, 25}, used[] = {1, 0, 7, 10};
    const flash_params_t p = copied(cu_q, cu_k, used);
    assert_ptr_not_equal(p.cu_seqlens_q, cu_q);
    assert_memory_equal(p.cu_seqlens_q, cu_q, sizeof cu_q);
    assert_memory_equal(p.cu_seqlens_k, cu_k, sizeof cu_k);
    assert_memory_equal(p.seqused_k, used, sizeof used);
}

TEST(lengths_that_are_not_given_have_no_copy) {
    const flash_params_t p = copied(NULL, NULL, NULL);
    assert_int_equal(cpu_lengths_size(&p), 0);
    assert_null(p.cu_seqlens_q);
    assert_null(p.cu_seqlens_k);
    assert_null(p.seqused_k);
}

TEST(used_keys_without_ragged_ones_are_of_the_whole_length) {
    const int32_t used[] = {-5, 0, 10, 11};
    const int32_t expected[] = {0, 0, 10, 10};
    assert_memory_equal(copied(NULL, NULL, used).seqused_k, expected, sizeof expected);
}

TEST(used_queries_are_those_of_the_sequence) {
    const cpu_totals_t totals = {TOTAL, TOTAL, {0, 0}};
    const int32_t cu_q[] = {0, 10, 10, 13, 20}, used[] = {11, 1, 3, -1};
    const int32_t of_ragged[] = {10, 0, 3, 0}, of_padded[] = {SEQLEN, 1, 3, 0};
    flash_params_t p = {
        .cu_seqlens_q = cu_q, .seqused_q = used, .batch = BATCH, .seqlen_q = SEQLEN};
    cpu_lengths_copy(&p, &totals, memory);
    assert_memory_equal(p.seqused_q, of_ragged, sizeof of_ragged);
    p.cu_seqlens_q = NULL;
    p.seqused_q = used;
    cpu_lengths_copy(&p, &totals, memory);
    assert_memory_equal(p.seqused_q, of_padded, sizeof of_padded);
}

TEST(padding_is_that_of_the_sequence) {
    const cpu_totals_t totals = {TOTAL, TOTAL, {0, 0}};
    const int32_t cu_k[] = {0, 10, 10, 13, 20}, padding[] = {11, 1, 3, -1};
    const int32_t of_ragged[] = {10, 0, 3, 0}, of_padded[] = {SEQLEN, 1, 3, 0};
    flash_params_t p = {
        .cu_seqlens_k = cu_k, .leftpad_k = padding, .batch = BATCH, .seqlen_k = SEQLEN};
    cpu_lengths_copy(&p, &totals, memory);
    assert_memory_equal(p.leftpad_k, of_ragged, sizeof of_ragged);
    p.cu_seqlens_k = NULL;
    p.leftpad_k = padding;
    cpu_lengths_copy(&p, &totals, memory);
    assert_memory_equal(p.leftpad_k, of_padded, sizeof of_padded);
}

/* ---- Pages ---- */

enum { PAGE_SIZE = 3, N_IDS = 7, N_ROWS = 2 };

/* Makes pages in rows of four ids, or with indptr. */
static flash_params_t copied_pages(const int32_t *indptr, const int32_t *rows,
                                   const int64_t *rows64, const int32_t *used) {
    const cpu_totals_t totals = {TOTAL, TOTAL, {.ids = N_IDS, .rows = N_ROWS}};
    flash_params_t p = {.seqused_k = used,
                        .pages = {.table = used,
                                  .table_stride = indptr ? 0 : 4,
                                  .indptr = indptr,
                                  .rows = rows,
                                  .rows64 = rows64,
                                  .page_size = PAGE_SIZE,
                                  .n_pages = 1},
                        .batch = BATCH,
                        .seqlen_k = SEQLEN};
    assert_true(cpu_lengths_size(&p) <= sizeof memory);
    cpu_lengths_copy(&p, &totals, memory);
    return p;
}

TEST(used_keys_are_within_their_pages) {
    const int32_t used[] = {1, 9, 10, 11}, indptr[] = {1, 1, 3, 6, 7};
    const int32_t of_rows[] = {1, 9, 10, 10}, of_ids[] = {0, 6, 9, 3};
    assert_memory_equal(copied_pages(NULL, NULL, NULL, used).seqused_k, of_rows, sizeof of_rows);
    const flash_params_t p = copied_pages(indptr, NULL, NULL, used);
    assert_memory_equal(p.pages.indptr, indptr, sizeof indptr);
    assert_memory_equal(p.seqused_k, of_ids, sizeof of_ids);
}

TEST(cumulative_lengths_of_pages_become_lengths) {
    const int32_t ends[] = {0, 1, 10, 20, 31}, used[] = {1, 8, 0, 9}, cut[] = {1, 9, 10, 10};
    const cpu_totals_t totals = {TOTAL, TOTAL, {.ids = N_IDS, .rows = N_ROWS}};
    const flash_params_t caller = {.cu_seqlens_k = ends,
                                   .pages = {.table = used, .table_stride = 4, .page_size = 3},
                                   .batch = BATCH,
                                   .seqlen_k = SEQLEN};
    flash_params_t p = caller;
    assert_true(cpu_lengths_size(&p) == 64);
    cpu_lengths_copy(&p, &totals, memory);
    assert_null(p.cu_seqlens_k);
    assert_memory_equal(p.seqused_k, cut, sizeof cut);
    p = caller;
    p.seqused_k = used;
    cpu_lengths_copy(&p, &totals, memory);
    assert_null(p.cu_seqlens_k);
    assert_memory_equal(p.seqused_k, used, sizeof used);
}

TEST(no_keys_are_used_of_a_table_without_rows) {
    const cpu_totals_t totals = {TOTAL, TOTAL, {0, 0}};
    const int32_t used[] = {1, 9, 10, 11}, rows[] = {-1, -1, -1, -1}, none[BATCH] = {0};
    flash_params_t p = {.seqused_k = used,
                        .pages = {.table = used, .table_stride = 4, .rows = rows, .page_size = 3},
                        .batch = BATCH,
                        .seqlen_k = SEQLEN};
    cpu_lengths_copy(&p, &totals, memory);
    assert_memory_equal(p.seqused_k, none, sizeof none);
}

static void check_bounds(const flash_params_t *p) {
    for (int b = 0; b < BATCH; b++) {
        const int32_t len_q = p->cu_seqlens_q[b + 1] - p->cu_seqlens_q[b];
        const int32_t len_k = p->cu_seqlens_k[b + 1] - p->cu_seqlens_k[b];
        assert_true(len_q >= 0 && len_q <= SEQLEN && len_k >= 0 && len_k <= SEQLEN);
        assert_true(p->seqused_k[b] >= 0 && p->seqused_k[b] <= len_k);
    }
    assert_int_equal(p->cu_seqlens_q[0], 0);
    assert_int_equal(p->cu_seqlens_k[0], 0);
    assert_true(p->cu_seqlens_q[BATCH] <= TOTAL && p->cu_seqlens_k[BATCH] <= TOTAL);
}

static int32_t random_length(uint32_t *bits) {
    static const int32_t extremes[] = {INT32_MIN, INT32_MAX, -1, 0, TOTAL, TOTAL + 1};
    *bits = *bits * 1664525u + 1013904223u;
    const uint32_t x = *bits >> 8;
    return x % 3 == 0 ? extremes[x / 3 % 6] : (int32_t)(x / 3 % 40) - 5;
}

TEST(whatever_is_read_stays_within_the_tensors) {
    uint32_t bits = 1;
    for (int i = 0; i < 100000; i++) {
        int32_t cu_q[BATCH + 1], cu_k[BATCH + 1], used[BATCH];
        for (int b = 0; b <= BATCH; b++) {
            cu_q[b] = random_length(&bits);
            cu_k[b] = random_length(&bits);
            used[b % BATCH] = random_length(&bits);
        }
        const flash_params_t p = copied(cu_q, cu_k, used);
        check_bounds(&p);
    }
}

TEST(whatever_is_read_stays_within_the_pages) {
    uint32_t bits = 1;
    for (int i = 0; i < 100000; i++) {
        int32_t indptr[BATCH + 1], rows[BATCH], used[BATCH];
        for (int b = 0; b <= BATCH; b++) {
            indptr[b] = random_length(&bits);
            rows[b % BATCH] = random_length(&bits);
            used[b % BATCH] = random_length(&bits);
        }
        flash_params_t p = copied_pages(indptr, NULL, NULL, used);
        for (int b = 0; b < BATCH; b++) {
            const int32_t n_ids = p.pages.indptr[b + 1] - p.pages.indptr[b];
            assert_true(n_ids >= 0 && p.pages.indptr[b] >= 0 && p.pages.indptr[b + 1] <= N_IDS);
            assert_true(p.seqused_k[b] >= 0 && p.seqused_k[b] <= n_ids * PAGE_SIZE);
        }
        int64_t rows64[BATCH];
        for (int b = 0; b < BATCH; b++)
            rows64[b] =
                (int64_t)((uint64_t)(uint32_t)random_length(&bits) << 32 | (uint32_t)rows[b]);
        for (int is_wide = 0; is_wide < 2; is_wide++) {
            p = copied_pages(NULL, is_wide ? NULL : rows, is_wide ? rows64 : NULL, used);
            assert_null(p.pages.rows64);
            for (int b = 0; b < BATCH; b++)
                assert_true(p.pages.rows[b] >= 0 && p.pages.rows[b] < N_ROWS);
        }
    }
}

/* ---- A thread changes lengths during calls ---- */

enum { N_CALLS = 3000, N_HEADS = 4, D_HEAD = 16, SEQLEN_K = 1100, MOST_TOKENS = BATCH * SEQLEN_K };

static _Atomic int32_t cu_seqlens[BATCH + 1], seqused[BATCH]; /* read as int32_t by the library */
static atomic_bool is_done;

/* Sets good lengths, then others. */
static void set_lengths(int32_t step, int32_t used) {
    for (int b = 0; b <= BATCH; b++)
        atomic_store_explicit(&cu_seqlens[b], b * step, memory_order_relaxed);
    for (int b = 0; b < BATCH; b++)
        atomic_store_explicit(&seqused[b], used, memory_order_relaxed);
}

static void *change_lengths(void *argument) {
    (void)argument;
    while (!atomic_load(&is_done)) {
        set_lengths(1, 1);
        set_lengths(1 << 28, 1 << 30);
        set_lengths(SEQLEN_K, SEQLEN_K);
        set_lengths(-(1 << 28), -(1 << 30));
        set_lengths(SEQLEN_K / 2, 3);
    }
    return NULL;
}

/* Tensors end with the last token of good lengths, so that a sanitizer sees reads beyond it. */
static flash_forward_args_t ragged_call(void *tensors[4], float *lse) {
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    flash_tensor_t *const all[] = {&args.q, &args.k, &args.v, &args.o};
    for (int i = 0; i < 4; i++) {
        all[i]->data = tensors[i];
        all[i]->stride_seq = N_HEADS * D_HEAD;
        all[i]->stride_head = D_HEAD;
    }
    args.dtype = FLASH_DTYPE_FP32;
    args.lse = lse;
    args.batch = BATCH;
    args.seqlen_q = args.seqlen_k = SEQLEN_K;
    args.n_heads = args.n_heads_kv = N_HEADS;
    args.d_head = D_HEAD;
    args.cu_seqlens_q = args.cu_seqlens_k = (const int32_t *)cu_seqlens;
    args.seqused_k = (const int32_t *)seqused;
    return args;
}

TEST(calls_survive_lengths_that_change) {
    void *tensors[4];
    float *lse = calloc((size_t)MOST_TOKENS * N_HEADS, sizeof *lse);
    pthread_t thread;
    uint64_t size;
    int32_t n_served = 0;
    for (int i = 0; i < 4; i++)
        assert_non_null(tensors[i] = calloc((size_t)MOST_TOKENS * N_HEADS * D_HEAD, sizeof(float)));
    flash_forward_args_t args = ragged_call(tensors, lse);
    set_lengths(1, 1);
    assert_success(flash_workspace_size(&args, NULL, &size));
    assert_non_null(args.workspace = malloc(size));
    args.workspace_size = size;
    assert_int_equal(pthread_create(&thread, NULL, change_lengths, NULL), 0);
    for (int i = 0; i < N_CALLS; i++)
        n_served += flash_forward(&args, NULL, NULL) == FLASH_SUCCESS;
    atomic_store(&is_done, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    print_message("%d of %d calls found good lengths\n", n_served, N_CALLS);
    free(args.workspace);
    free(lse);
    for (int i = 0; i < 4; i++)
        free(tensors[i]);
}

/* ---- A thread changes pages during calls ---- */

enum { POOL_PAGES = 40, KEYS_OF_PAGE = 16, ROW_IDS = SEQLEN_K / KEYS_OF_PAGE };

static _Atomic int32_t ids[BATCH * ROW_IDS], rows[BATCH];

/* Sets good pages, then others. Rows stay within the table, whose end the library does not know. */
static void set_pages(int32_t id, int32_t row, int32_t used) {
    for (int i = 0; i < BATCH * ROW_IDS; i++)
        atomic_store_explicit(&ids[i], id, memory_order_relaxed);
    for (int b = 0; b < BATCH; b++) {
        atomic_store_explicit(&rows[b], row, memory_order_relaxed);
        atomic_store_explicit(&seqused[b], used, memory_order_relaxed);
    }
}

static void *change_pages(void *argument) {
    (void)argument;
    while (!atomic_load(&is_done)) {
        set_pages(0, 0, ROW_IDS * KEYS_OF_PAGE);
        set_pages(POOL_PAGES, BATCH - 1, 1 << 30);
        set_pages(POOL_PAGES - 1, BATCH - 1, 40);
        set_pages(-1, -1, -1);
        set_pages(1 << 30, -(1 << 30), 3);
    }
    return NULL;
}

TEST(calls_survive_pages_that_change) {
    const size_t page = (size_t)KEYS_OF_PAGE * N_HEADS * D_HEAD;
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    flash_paging_t paging = FLASH_PAGING_INIT;
    pthread_t thread;
    uint64_t size;
    int32_t n_served = 0;
    atomic_store(&is_done, false);
    set_pages(0, 0, 40);
    args.dtype = FLASH_DTYPE_FP32;
    args.batch = BATCH;
    args.seqlen_q = 1;
    args.seqlen_k = SEQLEN_K;
    args.n_heads = args.n_heads_kv = N_HEADS;
    args.d_head = D_HEAD;
    args.q = flash_tensor_bshd(calloc(BATCH * N_HEADS * D_HEAD, 4), 1, N_HEADS, D_HEAD);
    args.o = flash_tensor_bshd(calloc(BATCH * N_HEADS * D_HEAD, 4), 1, N_HEADS, D_HEAD);
    args.k = flash_tensor_bshd(calloc(POOL_PAGES * page, 4), KEYS_OF_PAGE, N_HEADS, D_HEAD);
    args.v = flash_tensor_bshd(calloc(POOL_PAGES * page, 4), KEYS_OF_PAGE, N_HEADS, D_HEAD);
    args.seqused_k = (const int32_t *)seqused;
    args.paging = &paging;
    paging.page_size = KEYS_OF_PAGE;
    paging.n_pages = POOL_PAGES;
    paging.page_table = (const int32_t *)ids;
    paging.page_table_stride = ROW_IDS;
    paging.page_rows = (const int32_t *)rows;
    assert_success(flash_workspace_size(&args, NULL, &size));
    assert_non_null(args.workspace = malloc(size));
    args.workspace_size = size;
    assert_int_equal(pthread_create(&thread, NULL, change_pages, NULL), 0);
    for (int i = 0; i < N_CALLS; i++)
        n_served += flash_forward(&args, NULL, NULL) == FLASH_SUCCESS;
    atomic_store(&is_done, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    print_message("%d of %d calls found good pages\n", n_served, N_CALLS);
    free(args.workspace);
    free(args.q.data);
    free(args.o.data);
    free(args.k.data);
    free(args.v.data);
}
