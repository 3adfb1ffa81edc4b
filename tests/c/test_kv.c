/*
 * Where keys lie in K and V, by the runs that kernels ask for.
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

static void a_sequence_of_a_contiguous_cache_is_one_run(void **state) {
    const flash_params_t p = {.batch = BATCH, .seqlen_k = SEQLEN};
    (void)state;
    for (int32_t b = 0; b < BATCH; b++)
        check_keys(&p, &stride, b, (int64_t)b * SEQLEN);
}

static void a_sequence_of_a_ragged_cache_is_one_run(void **state) {
    const int32_t begins[BATCH + 1] = {0, 7, 7, 17};
    const flash_params_t p = {.batch = BATCH, .seqlen_k = SEQLEN, .cu_seqlens_k = begins};
    (void)state;
    for (int32_t b = 0; b < BATCH; b++)
        check_keys(&p, &ragged_stride, b, begins[b]);
}

static void a_run_ends_with_the_keys_in_use(void **state) {
    const int32_t used[BATCH] = {0, 4, SEQLEN};
    const flash_params_t p = {.batch = BATCH, .seqlen_k = SEQLEN, .seqused_k = used};
    (void)state;
    for (int32_t b = 0; b < BATCH; b++)
        check_keys(&p, &stride, b, (int64_t)b * SEQLEN);
}

static void check_first_keys(int32_t begin, int32_t end, int32_t most, int32_t expected_end) {
    const cpu_task_t task = {.sequence = {.len_k = SEQLEN}};
    const flash_range_t keys = {begin, end};
    const flash_range_t first = cpu_first_keys(&task, keys, most);
    assert_int_equal(first.begin, begin);
    assert_int_equal(first.end, expected_end);
}

static void keys_taken_at_a_time_end_with_block_range_and_run(void **state) {
    (void)state;
    check_first_keys(2, 9, 4, 6);
    check_first_keys(2, 9, 100, 9);
    check_first_keys(2, 100, 50, SEQLEN);
    check_first_keys(2, INT32_MAX, INT32_MAX, SEQLEN);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sequence_of_a_contiguous_cache_is_one_run),
        cmocka_unit_test(a_sequence_of_a_ragged_cache_is_one_run),
        cmocka_unit_test(a_run_ends_with_the_keys_in_use),
        cmocka_unit_test(keys_taken_at_a_time_end_with_block_range_and_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
