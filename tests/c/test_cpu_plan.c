/*
 * A problem is cut into tasks for the CPU, and workers share them.
 */
#include "core/int64.h"
#include "cpu/plan.h"
#include "support.h"

#include <stdbool.h>
#include <stdlib.h>

enum { B_R = 96, B_C = 128, D_HEAD = 128, MOST_WORKERS = 20 };

static const flash_config_t ROW = {
    .arch = FLASH_ARCH_AVX512, .dtype = FLASH_DTYPE_BF16, .B_r = B_R, .B_c = B_C};

static const flash_config_t AMX_ROW = {
    .arch = FLASH_ARCH_AMX, .dtype = FLASH_DTYPE_BF16, .B_r = 256, .B_c = 256};

/* Makes a problem in which each token has all heads side by side. */
static flash_params_t problem(int32_t batch, int32_t seqlen_q, int32_t seqlen_k, int32_t group,
                              int32_t n_heads_kv) {
    const flash_strides_t kv = {(int64_t)seqlen_k * n_heads_kv * D_HEAD, n_heads_kv * D_HEAD,
                                D_HEAD};
    return (flash_params_t){.k_stride = kv,
                            .v_stride = kv,
                            .q_dtype = FLASH_DTYPE_BF16,
                            .v_dtype = FLASH_DTYPE_BF16,
                            .o_dtype = FLASH_DTYPE_BF16,
                            .batch = batch,
                            .seqlen_q = seqlen_q,
                            .seqlen_k = seqlen_k,
                            .n_heads = n_heads_kv * group,
                            .n_heads_kv = n_heads_kv,
                            .group = group,
                            .d_head = D_HEAD,
                            .d_head_v = D_HEAD,
                            .window_left = -1,
                            .window_right = -1};
}

static cpu_plan_t plan_with(const flash_config_t *config, const flash_params_t *p,
                            int32_t n_threads) {
    cpu_plan_t plan;
    assert_int_equal(cpu_plan_make(config, p, n_threads, &plan), FLASH_SUCCESS);
    return plan;
}

static cpu_plan_t plan_of(const flash_params_t *p, int32_t n_threads) {
    return plan_with(&ROW, p, n_threads);
}

static int32_t heads_together(const flash_params_t *p, int32_t n_threads) {
    return plan_of(p, n_threads).heads_together;
}

/* ---- Families and ways ---- */

TEST(a_family_of_cuda_is_refused) {
    const flash_params_t p = problem(1, 1, 100, 1, 1);
    flash_config_t config = ROW;
    cpu_plan_t plan;
    config.arch = FLASH_ARCH_SM90;
    assert_null(cpu_family(config.arch));
    assert_int_equal(cpu_plan_make(&config, &p, 1, &plan), FLASH_ERROR_UNSUPPORTED);
}

static cpu_way_t way_of(int32_t arch, int32_t dtype, cpu_keys_t keys, int64_t n_rows) {
    const flash_config_t config = {.arch = arch, .dtype = dtype, .B_r = B_R, .B_c = B_C};
    flash_params_t p = problem(1, 1, 5000, 1, 8); /* keys a multiple of 1 KB apart */
    p.q_dtype = p.v_dtype = dtype;
    return cpu_way(cpu_family(arch), &config, &p, keys, n_rows, 5000);
}

typedef struct expected_way {
    int32_t arch;
    int32_t dtype;
    cpu_keys_t keys;
    int64_t n_rows;
    cpu_way_t way;
} expected_way_t;

static void check_ways(const expected_way_t *expected, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const expected_way_t *e = &expected[i];
        const cpu_way_t way = way_of(e->arch, e->dtype, e->keys, e->n_rows);
        if (way != e->way)
            fail_msg("line %zu of the table: the way is %d, not %d", i, (int)way, (int)e->way);
    }
}

TEST(many_rows_pack_their_keys_or_share_them) {
    static const int32_t archs[] = {FLASH_ARCH_AVX2, FLASH_ARCH_AVX512,
                                    FLASH_ARCH_AMX,  FLASH_ARCH_AVX512_BF16,
                                    FLASH_ARCH_NEON, FLASH_ARCH_NEON_BF16};
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++) {
        const int32_t arch = archs[i], bf16 = FLASH_DTYPE_BF16;
        assert_int_equal(way_of(arch, bf16, CPU_KEYS_PACKED, 40), CPU_WAY_SHARED);
        assert_int_equal(way_of(arch, bf16, CPU_KEYS_ALONE, 40), CPU_WAY_PRIVATE);
        assert_int_equal(way_of(arch, bf16, CPU_KEYS_SPLIT, 40), CPU_WAY_PRIVATE);
    }
}

TEST(few_rows_read_keys_where_they_lie) {
    static const expected_way_t expected[] = {
        {FLASH_ARCH_AVX2, FLASH_DTYPE_BF16, CPU_KEYS_ALONE, 12, CPU_WAY_STEPS},
        {FLASH_ARCH_AVX2, FLASH_DTYPE_BF16, CPU_KEYS_ALONE, 13, CPU_WAY_PRIVATE},
        {FLASH_ARCH_AVX2, FLASH_DTYPE_BF16, CPU_KEYS_PACKED, 12, CPU_WAY_STEPS},
        {FLASH_ARCH_AVX2, FLASH_DTYPE_BF16, CPU_KEYS_SPLIT, 24, CPU_WAY_STEPS},
        {FLASH_ARCH_AVX2, FLASH_DTYPE_FP32, CPU_KEYS_SPLIT, 16, CPU_WAY_STEPS},
        {FLASH_ARCH_AVX2, FLASH_DTYPE_FP32, CPU_KEYS_SPLIT, 17, CPU_WAY_PRIVATE},
        {FLASH_ARCH_NEON, FLASH_DTYPE_BF16, CPU_KEYS_SPLIT, 24, CPU_WAY_BLOCKS},
        {FLASH_ARCH_AVX512, FLASH_DTYPE_FP32, CPU_KEYS_SPLIT, 1, CPU_WAY_SINGLE_ROWS},
        {FLASH_ARCH_AVX512, FLASH_DTYPE_FP32, CPU_KEYS_SPLIT, 2, CPU_WAY_STEPS},
        {FLASH_ARCH_AVX512, FLASH_DTYPE_BF16, CPU_KEYS_SPLIT, 1, CPU_WAY_STEPS},
    };
    check_ways(expected, sizeof expected / sizeof expected[0]);
}

TEST(steps_are_for_keys_that_share_few_sets_or_fill_lines) {
    flash_params_t p = problem(1, 1, 5000, 1, 8);
    const cpu_family_t *avx512 = cpu_family(FLASH_ARCH_AVX512);
    flash_config_t config = ROW;
    p.k_stride.seq += 8;
    assert_int_equal(cpu_way(avx512, &config, &p, CPU_KEYS_SPLIT, 2, 5000), CPU_WAY_BLOCKS);
    config.dtype = p.v_dtype = FLASH_DTYPE_FP32; /* a line is one vector */
    assert_int_equal(cpu_way(avx512, &config, &p, CPU_KEYS_SPLIT, 2, 5000), CPU_WAY_STEPS);
}

/* Keys that are decoded first are read in blocks of one head, and many rows pack them. */
TEST(decoded_keys_are_read_in_blocks) {
    static const expected_way_t expected[] = {
        {FLASH_ARCH_AVX2, FLASH_DTYPE_Q8_0, CPU_KEYS_ALONE, 12, CPU_WAY_BLOCKS},
        {FLASH_ARCH_AVX512, FLASH_DTYPE_Q4_0, CPU_KEYS_SPLIT, 1, CPU_WAY_BLOCKS},
        {FLASH_ARCH_NEON, FLASH_DTYPE_Q8_0, CPU_KEYS_SPLIT, 24, CPU_WAY_BLOCKS},
        {FLASH_ARCH_AVX512, FLASH_DTYPE_Q8_0, CPU_KEYS_PACKED, 40, CPU_WAY_SHARED},
    };
    flash_params_t p = problem(1, 1, 5000, 1, 8);
    check_ways(expected, sizeof expected / sizeof expected[0]);
    p.v_dtype = FLASH_DTYPE_Q8_0; /* K is of bf16 */
    assert_int_equal(cpu_way(cpu_family(ROW.arch), &ROW, &p, CPU_KEYS_SPLIT, 2, 5000),
                     CPU_WAY_BLOCKS);
}

TEST(tiles_decode_two_to_sixteen_rows_of_bf16) {
    static const expected_way_t expected[] = {
        {FLASH_ARCH_AMX, FLASH_DTYPE_BF16, CPU_KEYS_SPLIT, 1, CPU_WAY_STEPS},
        {FLASH_ARCH_AMX, FLASH_DTYPE_BF16, CPU_KEYS_SPLIT, 2, CPU_WAY_DECODE},
        {FLASH_ARCH_AMX, FLASH_DTYPE_BF16, CPU_KEYS_ALONE, 16, CPU_WAY_DECODE},
        {FLASH_ARCH_AMX, FLASH_DTYPE_BF16, CPU_KEYS_SPLIT, 17, CPU_WAY_PRIVATE},
        {FLASH_ARCH_AMX, FLASH_DTYPE_BF16, CPU_KEYS_PACKED, 12, CPU_WAY_STEPS},
        {FLASH_ARCH_AMX, FLASH_DTYPE_BF16, CPU_KEYS_PACKED, 13, CPU_WAY_SHARED},
        {FLASH_ARCH_AMX, FLASH_DTYPE_FP16, CPU_KEYS_SPLIT, 12, CPU_WAY_STEPS},
        {FLASH_ARCH_AMX, FLASH_DTYPE_FP16, CPU_KEYS_SPLIT, 13, CPU_WAY_PRIVATE},
    };
    const flash_params_t p = problem(1, 1, 63, 1, 8);
    check_ways(expected, sizeof expected / sizeof expected[0]);
    assert_int_equal(cpu_way(cpu_family(FLASH_ARCH_AMX), &AMX_ROW, &p, CPU_KEYS_ALONE, 12, 63),
                     CPU_WAY_STEPS);
}

TEST(the_reference_goes_row_by_row) {
    assert_int_equal(way_of(FLASH_ARCH_REFERENCE, FLASH_DTYPE_FP32, CPU_KEYS_ALONE, 1),
                     CPU_WAY_ROW_BY_ROW);
    assert_int_equal(way_of(FLASH_ARCH_REFERENCE, FLASH_DTYPE_FP32, CPU_KEYS_SPLIT, 90),
                     CPU_WAY_ROW_BY_ROW);
}

/* ---- Splits ---- */

/* Checks that every key of every head is in one task, and that all rows fit scratch memory. */
static void check_split_tasks(const flash_params_t *p, int32_t n_threads) {
    const cpu_plan_t plan = plan_of(p, n_threads);
    const cpu_cut_t cut = cpu_cut_sequence(cpu_family(ROW.arch), &ROW, p, B_R, 0);
    int32_t *next_key = calloc((size_t)p->n_heads_kv, sizeof *next_key);
    assert_non_null(next_key);
    assert_true(cut.n_splits > 1);
    for (int64_t i = 0; i < cpu_plan_n_split_tasks(&plan, p, &cut, 0); i++) {
        const cpu_task_t task = cpu_plan_split_task(&plan, p, &cut, 0, i);
        const int64_t n_rows = task.row_end - task.row_begin;
        assert_true(task.n_heads == 1 || (task.n_heads > 1 && task.n_heads * n_rows <= B_R));
        assert_true(plan.family->scratch_size(&ROW, p, n_rows) <= plan.scratch_size);
        for (int32_t head = task.head_kv; head < task.head_kv + task.n_heads; head++) {
            assert_true(head < p->n_heads_kv);
            assert_int_equal(task.keys.begin, next_key[head]);
            assert_true(task.keys.begin < task.keys.end);
            next_key[head] = task.keys.end;
        }
    }
    for (int32_t head = 0; head < p->n_heads_kv; head++)
        assert_int_equal(next_key[head], p->seqlen_k);
    free(next_key);
}

TEST(split_tasks_have_every_key_of_every_head_once) {
    for (int32_t n_heads_kv = 1; n_heads_kv <= 40; n_heads_kv++) {
        for (int32_t n_threads = 1; n_threads <= MOST_WORKERS; n_threads++) {
            const flash_params_t one = problem(1, 1, 5000, 4, n_heads_kv);
            const flash_params_t few = problem(1, 3, 1100, 4, n_heads_kv);
            const flash_params_t first = problem(2, 1, 5000, 4, n_heads_kv);
            check_split_tasks(&one, n_threads);
            check_split_tasks(&few, n_threads);
            check_split_tasks(&first, n_threads);
        }
    }
}

TEST(splits_of_several_blocks_of_rows_have_every_key_once) {
    for (int32_t n_heads_kv = 3; n_heads_kv <= 20; n_heads_kv++)
        for (int32_t n_threads = 1; n_threads <= MOST_WORKERS; n_threads++) {
            const flash_params_t p = problem(1, 40, 12000, 4, n_heads_kv);
            check_split_tasks(&p, n_threads);
        }
}

TEST(nothing_is_beyond_the_last_split) {
    const flash_params_t p = problem(1, 1, 5000, 4, 8);
    const cpu_plan_t plan = plan_of(&p, 2);
    const cpu_cut_t cut = cpu_cut_sequence(cpu_family(ROW.arch), &ROW, &p, B_R, 0);
    const int64_t n_tasks = cpu_plan_n_split_tasks(&plan, &p, &cut, 0);
    const cpu_task_t task = cpu_plan_split_task(&plan, &p, &cut, 0, n_tasks);
    assert_true(task.keys.begin >= task.keys.end);
}

/* Counts the heads of the sequence's task `index`; a negative index counts from the end. */
static int32_t heads_of_task(const flash_params_t *p, int32_t n_threads, int32_t batch_index,
                             int64_t index) {
    const cpu_plan_t plan = plan_of(p, n_threads);
    const cpu_cut_t cut = cpu_cut_sequence(cpu_family(ROW.arch), &ROW, p, B_R, batch_index);
    const int64_t n_tasks = cpu_plan_n_split_tasks(&plan, p, &cut, batch_index);
    return cpu_plan_split_task(&plan, p, &cut, batch_index, index < 0 ? n_tasks + index : index)
        .n_heads;
}

/* There are 16 splits of 8 heads. Half a task per thread is divided into parts of two heads. */
TEST(a_call_ends_with_smaller_tasks) {
    const flash_params_t p = problem(1, 1, 8192, 4, 8);
    assert_int_equal(heads_of_task(&p, 8, 0, 0), 8);
    assert_int_equal(heads_of_task(&p, 8, 0, 11), 8);
    assert_int_equal(heads_of_task(&p, 8, 0, 12), 2);
    assert_int_equal(heads_of_task(&p, 8, 0, -1), 2);
    assert_int_equal(heads_of_task(&p, 1, 0, -1), 8);
}

TEST(only_the_last_sequence_does) {
    const flash_params_t p = problem(2, 1, 8192, 4, 8);
    assert_int_equal(heads_of_task(&p, 8, 0, -1), 8);
    assert_int_equal(heads_of_task(&p, 8, 1, -1), 2);
}

TEST(more_keys_never_have_fewer_splits) {
    for (int32_t n_heads = 1; n_heads <= 600; n_heads = 3 * n_heads / 2 + 1) {
        const flash_params_t p = problem(1, 4, 70000, 1, n_heads);
        int32_t before = 1;
        for (int64_t n_keys = 1; n_keys <= 70000; n_keys++) {
            const int32_t n_splits =
                cpu_cut_count_splits(cpu_family(ROW.arch), &ROW, &p, 4, n_keys);
            assert_true(n_splits >= before);
            before = n_splits;
        }
    }
}

TEST(the_workspace_has_room_for_the_splits_of_shorter_sequences) {
    for (int32_t n_heads = 1; n_heads <= 64; n_heads *= 2) {
        int32_t used = 1;
        flash_params_t p = problem(1, 1, 9000, 1, n_heads);
        p.seqused_k = &used;
        const cpu_plan_t plan = plan_of(&p, 4);
        for (; used <= 9000; used++)
            assert_true(cpu_cut_sequence(cpu_family(ROW.arch), &ROW, &p, B_R, 0).n_splits <=
                        plan.max_splits);
    }
}

TEST(the_workspace_has_room_for_the_splits_of_fewer_rows) {
    for (int32_t n_keys = 1000; n_keys <= 40000; n_keys = 3 * n_keys / 2 + 1) {
        int32_t begin[2] = {0, 500};
        flash_params_t p = problem(1, 500, n_keys, 1, 2);
        p.cu_seqlens_q = begin;
        const cpu_plan_t plan = plan_of(&p, 4);
        for (begin[1] = 1; begin[1] <= 500; begin[1]++) {
            const cpu_cut_t cut = cpu_cut_sequence(cpu_family(ROW.arch), &ROW, &p, B_R, 0);
            assert_true(cut.n_splits == 1 || cut.n_splits * cut.n_rows <= plan.partial_rows);
        }
    }
}

/* ---- Heads together ---- */

TEST(heads_side_by_side_are_together) {
    const flash_params_t few = problem(1, 1, 8192, 4, 8);
    flash_params_t many = problem(1, 1, 8192, 1, 64);
    assert_int_equal(heads_together(&few, 2), 8);
    assert_int_equal(heads_together(&many, 2), 32); /* 8 KB a key */
    many.k_stride.seq += 8;
    assert_int_equal(heads_together(&many, 2), 16); /* not in steps */
}

TEST(heads_behind_each_other_are_not) {
    flash_params_t p = problem(1, 1, 8192, 4, 8);
    p.v_stride.seq = D_HEAD;
    p.v_stride.head = (int64_t)8192 * D_HEAD;
    assert_int_equal(heads_together(&p, 2), 1);
}

TEST(many_threads_take_fewer_heads_each) {
    const flash_params_t p = problem(1, 1, 8192, 4, 8); /* 16 splits */
    assert_int_equal(heads_together(&p, 8), 8);
    assert_int_equal(heads_together(&p, 9), 4);
    assert_int_equal(heads_together(&p, 32), 2);
    assert_int_equal(heads_together(&p, 33), 1);
}

/* A task with packed keys, unlike one with keys in place, has one head. */
TEST(many_rows_are_of_one_head) {
    const flash_params_t few = problem(1, 6, 8192, 4, 8), many = problem(1, 7, 8192, 4, 8);
    assert_int_equal(heads_together(&few, 2), 4); /* 96 rows in all */
    assert_int_equal(heads_together(&many, 2), 1);
}

/* Rows of bf16 are decoded on tiles, where a task may have several heads. */
TEST(rows_on_tiles_are_of_several_heads) {
    const flash_params_t few = problem(1, 4, 8192, 4, 8), many = problem(1, 5, 8192, 4, 8);
    flash_params_t wide = few;
    flash_config_t halves = AMX_ROW;
    wide.q_dtype = FLASH_DTYPE_FP32;
    halves.dtype = FLASH_DTYPE_FP16;
    assert_int_equal(plan_with(&AMX_ROW, &few, 2).heads_together, 8);
    assert_int_equal(plan_with(&AMX_ROW, &many, 2).heads_together, 1);
    assert_int_equal(plan_with(&halves, &few, 2).heads_together, 1);
    assert_int_equal(plan_with(&AMX_ROW, &wide, 2).heads_together, 1);
}

TEST(heads_on_tiles_are_fewer) {
    const flash_params_t single = problem(1, 1, 8192, 1, 64), pairs = problem(1, 1, 8192, 2, 64);
    assert_int_equal(plan_with(&AMX_ROW, &single, 2).heads_together, 32); /* 8 KB a key */
    assert_int_equal(plan_with(&AMX_ROW, &pairs, 2).heads_together, 16);
}

/* ---- Shared packed keys ---- */

/* Returns the cut of a sequence, whose tasks may have any part of a block of rows. */
static cpu_cut_t cut_in_parts(const flash_params_t *p, int32_t batch_index) {
    return cpu_cut_sequence(cpu_family(ROW.arch), &ROW, p, 24, batch_index);
}

/* The sequences have as many queries and see as many keys, with others beside them and alone. */
TEST(neighbours_do_not_decide_what_tasks_share) {
    static const int32_t queries[] = {0, 100, 100, 96, 400}, keys[] = {2000, 900, 96, 2000};
    flash_params_t all = problem(4, 200, 2000, 1, 24);
    for (int32_t window = -1; window < 2100; window += window < 0 ? 51 : 700) {
        int32_t cu_seqlens[5] = {0};
        for (int32_t b = 0; b < 4; b++)
            cu_seqlens[b + 1] = cu_seqlens[b] + queries[b + 1];
        all.window_left = window;
        all.cu_seqlens_q = cu_seqlens;
        all.seqused_k = keys;
        for (int32_t b = 0; b < 4; b++) {
            flash_params_t alone = problem(1, queries[b + 1], keys[b], 1, 24);
            alone.window_left = window;
            const cpu_cut_t cut = cut_in_parts(&all, b), expected = cut_in_parts(&alone, 0);
            assert_int_equal(cut.n_splits, expected.n_splits);
            assert_int_equal(cut.n_packs, expected.n_packs);
            assert_int_equal(plan_of(&alone, 4).max_slots > 0, cut.n_packs > 0);
        }
    }
}

/* Tasks that pack for themselves do so from the first key on that they see. */
TEST(rows_are_cut_into_parts_only_where_keys_are_shared) {
    const flash_params_t one_block = problem(1, 96, 500, 1, 2), two = problem(1, 97, 500, 1, 2);
    const flash_params_t too_many = problem(1, 97, INT32_MAX, 1, 2);
    assert_int_equal(cut_in_parts(&one_block, 0).n_tasks_per_head, 1);
    assert_int_equal(cut_in_parts(&two, 0).n_tasks_per_head, 5);
    assert_int_equal(cut_in_parts(&two, 0).n_packs, 4);
    assert_int_equal(cut_in_parts(&too_many, 0).n_packs, 0);
}

/* A slot begins with the first block that any row of the head sees. */
TEST(packed_blocks_are_counted_from_the_first_that_is_seen) {
    flash_params_t p = problem(1, 500, 5000, 1, 2);
    p.window_left = 100;
    const cpu_plan_t plan = plan_of(&p, 2);
    const cpu_cut_t cut = cpu_cut_sequence(plan.family, &ROW, &p, plan.rows_per_task, 0);
    const int32_t first = (5000 - 500 - 100) / B_C;
    assert_int_equal(cut.n_packs, 40 - first);
    for (int64_t i = 0; i < cut.n_packs; i++) {
        const cpu_task_t task = cpu_plan_pack(&plan, &cut, 0, 0, i);
        assert_int_equal(task.packed_block, first);
        assert_int_equal(task.keys.begin, (first + i) * B_C);
    }
    assert_int_equal(cpu_plan_row_task(&plan, &p, &cut, 0, 0, 0).packed_block, first);
}

/* ---- Rows of a task ---- */

/* Checks that every row is in one task, the last rows first, and that all fit scratch memory. */
static void check_rows(const flash_config_t *config, const flash_params_t *p, int32_t n_threads) {
    const cpu_plan_t plan = plan_with(config, p, n_threads);
    const cpu_cut_t cut = cpu_cut_sequence(plan.family, config, p, plan.rows_per_task, 0);
    int64_t left = cut.n_rows;
    for (int64_t i = 0; i < cut.n_tasks_per_head; i++) {
        const cpu_task_t task = cpu_cut_task(p, &cut, 0, 0, i);
        const int64_t n_rows = task.row_end - task.row_begin;
        assert_int_equal(task.row_end, left);
        assert_true(n_rows >= 1 && n_rows <= max64(plan.rows_per_task, config->B_r));
        assert_true(plan.family->scratch_size(config, p, n_rows) <= plan.scratch_size);
        left = task.row_begin;
    }
    assert_int_equal(left, 0);
}

TEST(tasks_have_every_row_once) {
    for (int32_t seqlen = 1; seqlen <= 5 * B_R; seqlen++) {
        const flash_params_t p = problem(1, seqlen, seqlen, 1, 2);
        for (int32_t n_threads = 1; n_threads <= MOST_WORKERS; n_threads++)
            check_rows(&ROW, &p, n_threads);
    }
}

TEST(large_tasks_have_every_row_once) {
    for (int32_t seqlen = 1025; seqlen <= 5000; seqlen += 61) { /* fewer are split */
        const flash_params_t p = problem(1, seqlen, 4096, 1, 16);
        for (int32_t n_threads = 1; n_threads <= 4; n_threads++)
            check_rows(&AMX_ROW, &p, n_threads);
    }
}

/* The problem has 16 heads of 4096 rows. */
TEST(tasks_have_several_blocks_of_rows_where_keys_are_many) {
    const flash_params_t few_keys = problem(1, 4096, 1024, 1, 16);
    const flash_params_t many_keys = problem(1, 4096, 4096, 1, 16);
    assert_int_equal(plan_with(&AMX_ROW, &few_keys, 1).rows_per_task, 256);
    assert_int_equal(plan_with(&AMX_ROW, &many_keys, 2).rows_per_task, 1024);
    assert_int_equal(plan_with(&AMX_ROW, &many_keys, 3).rows_per_task, 512);
    assert_int_equal(plan_with(&AMX_ROW, &many_keys, 5).rows_per_task, 256);
    assert_int_equal(plan_of(&many_keys, 1).rows_per_task, B_R);
}

TEST(tasks_have_fewer_rows_where_threads_have_none) {
    const flash_params_t blocks = problem(1, 2 * B_R, 300, 1, 4), one = problem(1, B_R, 300, 1, 4);
    assert_int_equal(plan_of(&blocks, 8).rows_per_task, B_R);
    assert_int_equal(plan_of(&blocks, 9).rows_per_task, B_R / 2);
    assert_int_equal(plan_of(&blocks, 64).rows_per_task, B_R / 2); /* two units */
    assert_int_equal(plan_of(&blocks, 64).max_workers, 16);
    assert_int_equal(plan_of(&one, 64).rows_per_task, B_R); /* packs its own keys */
}

/* ---- Whole heads ---- */

/* Returns the plan in a workspace of some size that has room for all workers. */
static cpu_plan_t plan_within(const flash_params_t *p, int32_t n_threads, uint64_t size) {
    cpu_plan_t plan = plan_of(p, n_threads);
    assert_true(cpu_plan_fit(&plan, p, size));
    assert_int_equal(plan.n_workers, plan.max_workers);
    return plan;
}

/* Returns the bytes that suffice for a head of each worker, and one more of each but one. */
static uint64_t bytes_of_single_heads(const cpu_plan_t *plan) {
    const int64_t n_slots = min64(plan->max_slots, 2 * plan->n_workers - 1);
    return CPU_WORKSPACE_ALIGNMENT - 1 + plan->scratch_at +
           (uint64_t)plan->n_workers * plan->scratch_size + (uint64_t)n_slots * plan->packed_size;
}

static int64_t whole_heads(const flash_params_t *p, int32_t n_workers) {
    return plan_of(p, n_workers).n_whole;
}

static void check_share(const flash_params_t *p, const cpu_plan_t *plan) {
    const int64_t n_heads = (int64_t)p->batch * p->n_heads_kv;
    const int64_t n_taken = plan->n_workers * plan->turns;
    assert_true(plan->turns >= 1);
    assert_int_equal(plan->n_whole, n_heads / n_taken * n_taken);
    if (plan->n_whole > 0)
        assert_true(n_taken + n_heads - plan->n_whole <= plan->n_slots);
}

TEST(every_worker_has_as_many_whole_heads_and_all_have_slots) {
    for (int32_t n_heads_kv = 1; n_heads_kv <= 40; n_heads_kv++) {
        const flash_params_t p = problem(2, 300, 300, 1, n_heads_kv);
        for (int32_t n_workers = 1; n_workers <= MOST_WORKERS; n_workers++) {
            const cpu_plan_t plan = plan_of(&p, n_workers);
            const uint64_t most = cpu_plan_workspace(&plan);
            uint64_t size = max_u64(bytes_of_single_heads(&plan), plan.least_workspace);
            check_share(&p, &plan);
            for (; size <= most; size += plan.packed_size) {
                const cpu_plan_t fitting = plan_within(&p, n_workers, size);
                check_share(&p, &fitting);
            }
        }
    }
}

TEST(heads_side_by_side_go_by_turns) {
    const flash_params_t p = problem(1, 300, 100, 1, 32); /* 128 KB a head */
    flash_params_t behind = p;
    behind.k_stride.seq = D_HEAD;
    behind.k_stride.head = (int64_t)100 * D_HEAD;
    assert_int_equal(plan_of(&p, 1).turns, 8);
    assert_int_equal(plan_of(&p, 2).turns, 4); /* four rounds each */
    assert_int_equal(plan_of(&p, 5).turns, 1);
    assert_int_equal(plan_of(&behind, 1).turns, 1);
}

TEST(less_memory_means_fewer_turns) {
    const flash_params_t p = problem(1, 300, 100, 1, 32);
    const cpu_plan_t plan = plan_of(&p, 2);
    const uint64_t single = bytes_of_single_heads(&plan);
    assert_int_equal(plan_within(&p, 2, single).turns, 1);
    assert_int_equal(plan_within(&p, 2, single + 4 * plan.packed_size).turns, 2);
    assert_true(single < cpu_plan_workspace(&plan));
}

/* Workers go on with packed keys of a single head, and with fewer rows in a task. */
TEST(less_memory_takes_slots_and_rows_before_workers) {
    const flash_params_t heads = problem(1, 300, 100, 1, 32);
    flash_params_t rows = problem(1, 8192, 4096, 1, 16);
    cpu_plan_t plan = plan_of(&heads, 8);
    const uint64_t one_slot = bytes_of_single_heads(&plan) - 14 * plan.packed_size;
    assert_int_equal(plan_within(&heads, 8, one_slot).n_slots, 1);
    assert_int_equal(plan_within(&heads, 8, one_slot).n_whole, 0);
    assert_true(cpu_plan_fit(&plan, &heads, one_slot - 1) && plan.n_workers == 7);

    rows.d_head = rows.d_head_v = 512; /* so that many rows need more scratch memory */
    plan = plan_with(&AMX_ROW, &rows, 2);
    assert_int_equal(plan.rows_per_task, 1024);
    const uint64_t enough = bytes_of_single_heads(&plan) - 2 * plan.packed_size;
    assert_true(cpu_plan_fit(&plan, &rows, enough));
    assert_true(plan.rows_per_task == 1024 && plan.n_workers == 2 && plan.n_slots == 1);
    assert_true(cpu_plan_fit(&plan, &rows, enough - 1));
    assert_true(plan.rows_per_task == 512 && plan.n_workers == 2 && plan.n_slots == 1);
}

TEST(large_or_unlike_heads_are_shared) {
    const int32_t used[2] = {300, 20};
    const flash_params_t large = problem(2, 4096, 4096, 1, 8);
    flash_params_t unlike = problem(2, 300, 300, 1, 8);
    unlike.seqused_k = used;
    assert_int_equal(whole_heads(&large, 2), 0);
    assert_int_equal(whole_heads(&unlike, 2), 0);
}

TEST(heads_of_many_rows_are_whole_in_four_rounds) {
    const flash_params_t many = problem(1, 300, 300, 4, 8), few = problem(1, 100, 400, 4, 8);
    assert_int_equal(whole_heads(&many, 2), 8);
    assert_int_equal(whole_heads(&many, 3), 0);
    assert_int_equal(whole_heads(&many, 8), 0);
    assert_int_equal(whole_heads(&few, 8), 8);
}

TEST(heads_that_pack_nothing_are_not_whole) {
    const flash_params_t split = problem(1, 1, 8192, 4, 8), short_rows = problem(2, 50, 50, 1, 8);
    assert_int_equal(whole_heads(&split, 2), 0);
    assert_int_equal(whole_heads(&short_rows, 2), 0);
}

/* ---- Problems that are refused ---- */

static const flash_params_t UNCOUNTABLE[] = {{.batch = INT32_MAX,
                                              .n_heads = INT32_MAX,
                                              .n_heads_kv = INT32_MAX,
                                              .group = 1,
                                              .seqlen_q = 1000,
                                              .seqlen_k = 1000,
                                              .d_head = 64,
                                              .d_head_v = 64},
                                             {.batch = INT32_MAX,
                                              .n_heads = INT32_MAX,
                                              .n_heads_kv = INT32_MAX,
                                              .group = 1,
                                              .seqlen_q = 0,
                                              .seqlen_k = 1000,
                                              .d_head = 64,
                                              .d_head_v = 64},
                                             {.batch = 1,
                                              .n_heads = INT32_MAX,
                                              .n_heads_kv = 1,
                                              .group = INT32_MAX,
                                              .seqlen_q = INT32_MAX,
                                              .seqlen_k = 1,
                                              .d_head = 64,
                                              .d_head_v = 64},
                                             {.batch = INT32_MAX,
                                              .n_heads = INT32_MAX,
                                              .n_heads_kv = 1,
                                              .group = INT32_MAX,
                                              .seqlen_q = INT32_MAX,
                                              .seqlen_k = INT32_MAX,
                                              .d_head = INT32_MAX,
                                              .d_head_v = INT32_MAX},
                                             {.batch = INT32_MAX,
                                              .n_heads = 64,
                                              .n_heads_kv = 64,
                                              .group = 1,
                                              .seqlen_q = 1,
                                              .seqlen_k = 4096,
                                              .d_head = INT32_MAX,
                                              .d_head_v = INT32_MAX}};

static const int32_t ARCHS[] = {FLASH_ARCH_REFERENCE,   FLASH_ARCH_AVX2, FLASH_ARCH_AVX512,
                                FLASH_ARCH_AVX512_BF16, FLASH_ARCH_AMX,  FLASH_ARCH_NEON,
                                FLASH_ARCH_NEON_BF16};
enum { N_ARCHS = sizeof ARCHS / sizeof ARCHS[0] };

static flash_config_t config_of(int32_t arch) {
    return (flash_config_t){.arch = arch, .dtype = FLASH_DTYPE_BF16, .B_r = 96, .B_c = 128};
}

TEST(what_cannot_be_counted_is_refused) {
    for (int i = 0; i < N_ARCHS; i++)
        for (size_t j = 0; j < sizeof UNCOUNTABLE / sizeof UNCOUNTABLE[0]; j++) {
            const flash_config_t config = config_of(ARCHS[i]);
            cpu_plan_t plan;
            assert_non_null(cpu_plan_obstacle(&config, &UNCOUNTABLE[j]));
            assert_int_equal(cpu_plan_make(&config, &UNCOUNTABLE[j], 16, &plan),
                             FLASH_ERROR_UNSUPPORTED);
        }
}

TEST(keys_that_are_too_many_to_share_are_planned) {
    const flash_params_t p = {.batch = 1,
                              .n_heads = 1,
                              .n_heads_kv = 1,
                              .group = 1,
                              .seqlen_q = 5000,
                              .seqlen_k = INT32_MAX,
                              .d_head = INT32_MAX,
                              .d_head_v = INT32_MAX};
    for (int i = 0; i < N_ARCHS; i++) {
        const flash_config_t config = config_of(ARCHS[i]);
        cpu_plan_t plan;
        assert_int_equal(cpu_plan_make(&config, &p, 16, &plan), FLASH_SUCCESS);
        assert_int_equal(plan.max_slots, 0);
    }
}

/* These sizes are far from ordinary, but 63 bits count their workspace. */
TEST(what_can_be_counted_is_planned) {
    const flash_params_t problems[] = {{.batch = 1,
                                        .n_heads = 1,
                                        .n_heads_kv = 1,
                                        .group = 1,
                                        .seqlen_q = INT32_MAX,
                                        .seqlen_k = INT32_MAX,
                                        .d_head = 64,
                                        .d_head_v = 64},
                                       {.batch = 1,
                                        .n_heads = 1 << 20,
                                        .n_heads_kv = 1,
                                        .group = 1 << 20,
                                        .seqlen_q = INT32_MAX,
                                        .seqlen_k = INT32_MAX,
                                        .d_head = 64,
                                        .d_head_v = 64},
                                       {.batch = INT32_MAX,
                                        .n_heads = 512,
                                        .n_heads_kv = 512,
                                        .group = 1,
                                        .seqlen_q = 1,
                                        .seqlen_k = 1000,
                                        .d_head = 64,
                                        .d_head_v = 64},
                                       {.batch = 1,
                                        .n_heads = 1,
                                        .n_heads_kv = 1,
                                        .group = 1,
                                        .seqlen_q = 1,
                                        .seqlen_k = 1 << 20,
                                        .d_head = INT32_MAX,
                                        .d_head_v = INT32_MAX}};
    for (int i = 0; i < N_ARCHS; i++)
        for (size_t j = 0; j < sizeof problems / sizeof problems[0]; j++) {
            const flash_config_t config = config_of(ARCHS[i]);
            cpu_plan_t plan = plan_with(&config, &problems[j], 4096);
            const cpu_cut_t cut =
                cpu_cut_sequence(plan.family, &config, &problems[j], plan.rows_per_task, 0);
            assert_null(cpu_plan_obstacle(&config, &problems[j]));
            assert_true(plan.max_workers >= 1 && cut.n_tasks_per_head >= 1);
            assert_false(cpu_plan_fit(&plan, &problems[j], plan.least_workspace - 1));
            assert_true(cpu_plan_fit(&plan, &problems[j], plan.least_workspace));
            assert_true(plan.n_workers >= 1);
        }
}
