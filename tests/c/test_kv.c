/*
 * Runs of keys say where keys lie in K and V.
 */
#include "kernels/common/kv.h"
#include "kernels/cpu/rows.h"
#include "support.h"

enum { BATCH = 3, HEADS = 2, SEQLEN = 10, D_HEAD = 8 };

static const flash_strides_t stride = {
    .batch = SEQLEN * HEADS * D_HEAD, .seq = HEADS * D_HEAD, .head = D_HEAD};

static const flash_strides_t ragged_stride = {.seq = HEADS * D_HEAD, .head = D_HEAD};

static void check_keys(const flash_params_t *p, const flash_strides_t *strides, int32_t batch,
                       int64_t first_token) {
    const flash_sequence_t s = flash_sequence(p, batch);
    for (int32_t key = 0; key < s.len_k; key++)
        for (int32_t head = 0; head < HEADS; head++) {
            const flash_kv_run_t run = flash_kv_run(&s, batch, key);
            const int64_t expected = ((first_token + key) * HEADS + head) * D_HEAD;
            assert_int_equal(flash_kv_offset(strides, &run, head), expected);
            assert_int_equal(flash_kv_left(&run), s.len_k - key);
        }
}

TEST(a_sequence_of_a_contiguous_cache_is_one_run) {
    const flash_params_t p = {.batch = BATCH, .seqlen_k = SEQLEN};
    for (int32_t b = 0; b < BATCH; b++)
        check_keys(&p, &stride, b, (int64_t)b * SEQLEN);
}

TEST(a_sequence_of_a_ragged_cache_is_one_run) {
    const int32_t begins[BATCH + 1] = {0, 7, 7, 17};
    const flash_params_t p = {.batch = BATCH, .seqlen_k = SEQLEN, .cu_seqlens_k = begins};
    for (int32_t b = 0; b < BATCH; b++)
        check_keys(&p, &ragged_stride, b, begins[b]);
}

TEST(a_run_ends_with_the_keys_in_use) {
    const int32_t used[BATCH] = {0, 4, SEQLEN};
    const flash_params_t p = {.batch = BATCH, .seqlen_k = SEQLEN, .seqused_k = used};
    for (int32_t b = 0; b < BATCH; b++)
        check_keys(&p, &stride, b, (int64_t)b * SEQLEN);
}

/* Padding is taken from the keys in use, and a negative one for none. */
TEST(keys_begin_behind_the_padding) {
    const int32_t used[BATCH] = {SEQLEN, 4, 4}, padding[BATCH] = {3, 5, INT32_MIN};
    const int32_t begins[BATCH + 1] = {0, 10, 17, 27}, kept[BATCH] = {7, 0, 4};
    flash_params_t p = {
        .batch = BATCH, .seqlen_k = SEQLEN, .seqused_k = used, .leftpad_k = padding};
    for (int32_t b = 0; b < BATCH; b++) {
        assert_int_equal(flash_sequence(&p, b).len_k, kept[b]);
        check_keys(&p, &stride, b, (int64_t)b * SEQLEN + (b == 0 ? 3 : 0));
    }
    p.cu_seqlens_k = begins;
    for (int32_t b = 0; b < BATCH; b++)
        check_keys(&p, &ragged_stride, b, begins[b] + (b == 0 ? 3 : 0));
}

/* Padded and ragged batches alike find a sequence by its queries in use. */
TEST(a_sequence_of_another_kernel_has_no_queries) {
    const int32_t begins[BATCH + 1] = {0, 4, 9, 15}, used[BATCH] = {4, 5, 3};
    flash_params_t p = {.batch = BATCH,
                        .seqlen_q = SEQLEN,
                        .seqlen_k = SEQLEN,
                        .cu_seqlens_q = begins,
                        .seqused_q = used};
    for (p.least_queries = 0; p.least_queries <= 6; p.least_queries++)
        for (p.most_queries = 0; p.most_queries <= 6; p.most_queries++)
            for (int32_t b = 0; b < BATCH; b++) {
                const bool own = p.most_queries == 0 ||
                                 (used[b] >= p.least_queries && used[b] <= p.most_queries);
                const flash_sequence_t s = flash_sequence(&p, b);
                assert_int_equal(s.len_q, own ? used[b] : 0);
                assert_int_equal(s.q_begin, begins[b]);
                assert_int_equal(s.len_k, SEQLEN);
            }
}

static void check_first_keys(int32_t begin, int32_t end, int32_t most, int32_t expected_end) {
    const flash_range_t keys = {begin, end};
    const flash_range_t first = cpu_first_keys(keys, most);
    assert_int_equal(first.begin, begin);
    assert_int_equal(first.end, expected_end);
}

TEST(keys_taken_at_a_time_end_with_block_and_range) {
    check_first_keys(2, 9, 4, 6);
    check_first_keys(2, 9, 100, 9);
    check_first_keys(2, INT32_MAX, INT32_MAX, INT32_MAX);
}

/* ---- Pages ---- */

enum { PAGE_SIZE = 4, N_PAGES = 9 };

static const flash_strides_t page_stride = {
    .batch = PAGE_SIZE * HEADS * D_HEAD, .seq = HEADS * D_HEAD, .head = D_HEAD};
static const int32_t table[] = {5, 0, 7, 1, 8, 2, 6, 4, 3}, v_table[] = {1, 2, 3, 4, 5, 6, 7, 8, 0};
static const int32_t paged_lengths[BATCH] = {SEQLEN, 0, 9};

static flash_params_t paged_params(void) {
    const flash_params_t p = {.batch = BATCH,
                              .seqlen_k = SEQLEN,
                              .seqused_k = paged_lengths,
                              .k_stride = page_stride,
                              .v_stride = page_stride,
                              .pages = {.table = table,
                                        .table_stride = 3,
                                        .v_table = v_table,
                                        .page_size = PAGE_SIZE,
                                        .n_pages = N_PAGES}};
    return p;
}

/* first_id: where the ids of the sequence are expected. */
static void check_pages(const flash_params_t *p, int32_t batch, int32_t first_id) {
    const cpu_task_t task = {.sequence = flash_paged_sequence(p, batch), .batch_index = batch};
    const cpu_kv_t k = cpu_kv_k(p), v = cpu_kv_v(p);
    for (int32_t key = 0; key < task.sequence.len_k; key++) {
        const int32_t page = first_id + key / PAGE_SIZE, at = key % PAGE_SIZE;
        const flash_kv_run_t run = cpu_page_run(p, &task, k.table, key);
        const int32_t left = PAGE_SIZE - at, rest = task.sequence.len_k - key;
        assert_int_equal(cpu_key_index(p, &task, &k, key),
                         (table[page] * PAGE_SIZE + at) * HEADS * D_HEAD);
        assert_int_equal(cpu_key_index(p, &task, &v, key),
                         (v_table[page] * PAGE_SIZE + at) * HEADS * D_HEAD);
        assert_int_equal(flash_kv_left(&run), left < rest ? left : rest);
    }
}

TEST(a_page_of_a_cache_is_a_run) {
    flash_params_t p = paged_params();
    for (int32_t b = 0; b < BATCH; b++)
        check_pages(&p, b, 3 * b);
}

TEST(rows_of_a_page_table_may_be_any) {
    const int32_t rows[BATCH] = {2, 0, 1};
    flash_params_t p = paged_params();
    p.pages.rows = rows;
    for (int32_t b = 0; b < BATCH; b++)
        check_pages(&p, b, 3 * rows[b]);
}

TEST(rows_of_a_page_table_may_have_64_bits) {
    const int64_t rows[BATCH] = {2, 0, 1}, none[] = {1ll << 32, -(1ll << 32) + 2, INT64_MIN};
    flash_params_t p = paged_params();
    p.pages.rows64 = rows;
    for (int32_t b = 0; b < BATCH; b++)
        check_pages(&p, b, 3 * (int32_t)rows[b]);
    p.pages.rows64 = none;
    for (int32_t b = 0; b < BATCH; b++)
        assert_int_equal(flash_page_row(&p.pages, b), -1);
}

TEST(lengths_of_pages_may_be_cumulative) {
    const int32_t ends[BATCH + 1] = {0, SEQLEN, SEQLEN, SEQLEN + 9}, fewer[BATCH] = {3, 0, 8};
    flash_params_t p = paged_params();
    p.seqused_k = NULL;
    p.cu_seqlens_k = ends;
    for (int32_t b = 0; b < BATCH; b++) {
        const flash_sequence_t s = flash_paged_sequence(&p, b);
        assert_true(s.k_begin == 0 && s.len_k == paged_lengths[b]);
        check_pages(&p, b, 3 * b);
    }
    p.seqused_k = fewer;
    for (int32_t b = 0; b < BATCH; b++)
        assert_int_equal(flash_paged_sequence(&p, b).len_k, fewer[b]);
}

TEST(a_page_table_may_be_ragged) {
    const int32_t indptr[BATCH + 1] = {2, 5, 5, 8};
    flash_params_t p = paged_params();
    p.pages.indptr = indptr;
    p.pages.table_stride = 0;
    for (int32_t b = 0; b < BATCH; b++)
        check_pages(&p, b, indptr[b]);
}

TEST(a_slot_is_one_run) {
    const int32_t rows[BATCH] = {1, 0, 2};
    const flash_params_t p = {.batch = BATCH,
                              .seqlen_k = SEQLEN,
                              .seqused_k = paged_lengths,
                              .pages = {.rows = rows, .page_size = SEQLEN, .n_pages = BATCH}};
    for (int32_t b = 0; b < BATCH; b++) {
        const flash_sequence_t s = flash_paged_sequence(&p, b);
        for (int32_t key = 0; key < s.len_k; key++) {
            const flash_kv_run_t run =
                flash_kv_paged_run(&p.pages, NULL, &s, flash_pages_first_id(&p.pages, b), key);
            assert_int_equal(flash_kv_offset(&stride, &run, 1),
                             ((rows[b] * SEQLEN + key) * HEADS + 1) * D_HEAD);
            assert_int_equal(flash_kv_left(&run), paged_lengths[b] - key);
        }
    }
}

TEST(a_slot_holds_its_padding_too) {
    const int32_t rows[BATCH] = {1, 0, 2}, used[BATCH] = {SEQLEN, INT32_MAX, INT32_MAX};
    const int32_t padding[BATCH] = {4, 4, SEQLEN + 1}, kept[BATCH] = {6, 6, 0};
    const flash_params_t p = {.batch = BATCH,
                              .seqlen_k = SEQLEN,
                              .seqused_k = used,
                              .leftpad_k = padding,
                              .pages = {.rows = rows, .page_size = SEQLEN, .n_pages = BATCH}};
    for (int32_t b = 0; b < BATCH; b++) {
        const flash_sequence_t s = flash_paged_sequence(&p, b);
        assert_int_equal(s.len_k, kept[b]);
        for (int32_t key = 0; key < s.len_k; key++) {
            const flash_kv_run_t run =
                flash_kv_paged_run(&p.pages, NULL, &s, flash_pages_first_id(&p.pages, b), key);
            assert_int_equal(flash_kv_offset(&stride, &run, 0),
                             (rows[b] * SEQLEN + padding[b] + key) * HEADS * D_HEAD);
            assert_int_equal(flash_kv_left(&run), kept[b] - key);
        }
    }
}

TEST(lengths_are_cut_to_what_pages_hold) {
    const int32_t used[BATCH] = {INT32_MAX, 12, 13};
    const int32_t indptr[BATCH + 1] = {0, 1, 1, 3};
    flash_params_t p = paged_params();
    p.seqused_k = used;
    p.seqlen_k = 100;
    for (int32_t b = 0; b < BATCH; b++)
        assert_int_equal(flash_paged_sequence(&p, b).len_k, 3 * PAGE_SIZE);
    p.pages.indptr = indptr;
    assert_int_equal(flash_paged_sequence(&p, 0).len_k, PAGE_SIZE);
    assert_int_equal(flash_paged_sequence(&p, 1).len_k, 0);
    assert_int_equal(flash_paged_sequence(&p, 2).len_k, 2 * PAGE_SIZE);
    p.seqlen_k = 3;
    assert_int_equal(flash_paged_sequence(&p, 2).len_k, 3);
}

TEST(an_id_that_is_no_page_is_not_followed) {
    const int32_t bad[] = {-1, N_PAGES, INT32_MIN};
    flash_params_t p = paged_params();
    p.pages.table = bad;
    const cpu_task_t task = {.sequence = flash_paged_sequence(&p, 0)};
    for (int32_t key = 0; key < SEQLEN; key++)
        assert_int_equal(cpu_page_run(&p, &task, bad, key).entry, 0);
}
