/*
 * The least workspace of a CPU call suffices for every smaller problem, and all that is used is in
 * what a call gets.
 */
#include "core/int64.h"
#include "cpu/plan.h"
#include "support.h"

#include <stdbool.h>

static const flash_config_t CONFIGS[] = {
    {.arch = FLASH_ARCH_REFERENCE, .dtype = FLASH_DTYPE_FP32, .B_r = 16, .B_c = 1},
    {.arch = FLASH_ARCH_AVX2, .dtype = FLASH_DTYPE_FP32, .B_r = 96, .B_c = 128},
    {.arch = FLASH_ARCH_AVX512, .dtype = FLASH_DTYPE_BF16, .B_r = 96, .B_c = 128},
    {.arch = FLASH_ARCH_AVX512, .dtype = FLASH_DTYPE_FP32, .B_r = 24, .B_c = 33},
    {.arch = FLASH_ARCH_AVX512_BF16, .dtype = FLASH_DTYPE_BF16, .B_r = 96, .B_c = 256},
    {.arch = FLASH_ARCH_NEON, .dtype = FLASH_DTYPE_FP16, .B_r = 96, .B_c = 128},
    {.arch = FLASH_ARCH_AMX, .dtype = FLASH_DTYPE_BF16, .B_r = 256, .B_c = 256},
    {.arch = FLASH_ARCH_AMX, .dtype = FLASH_DTYPE_FP16, .B_r = 256, .B_c = 128},
    {.arch = FLASH_ARCH_AMX, .dtype = FLASH_DTYPE_BF16, .B_r = 32, .B_c = 64},
};
enum { N_CONFIGS = sizeof CONFIGS / sizeof CONFIGS[0], N_PAIRS = 40000, MOST_THREADS = 128 };

/* ---- Random problems ---- */

static uint64_t random_state = 1;

static uint32_t random_bits(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

/* Returns 0 ... most, with every magnitude equally likely. */
static int32_t random_length(int32_t most) {
    int32_t bits = 0;
    while (most >> bits > 1)
        bits++;
    const int32_t limit = (int32_t)(random_bits() % ((2u << (random_bits() % (bits + 1)))));
    return limit > most ? most : limit;
}

/* Picks one of an array's elements at random. */
#define ONE_OF(array) ((array)[random_bits() % (sizeof(array) / sizeof((array)[0]))])

/* Returns strides of [seq, head] order, or of [head, seq] order. */
static flash_strides_t strides_of(const flash_params_t *p, bool heads_first) {
    const int64_t row = p->d_head, token = row * p->n_heads_kv;
    const flash_strides_t tokens = {token * p->seqlen_k, token, row};
    const flash_strides_t heads = {token * p->seqlen_k, row, row * p->seqlen_k};
    return heads_first ? heads : tokens;
}

static void set_lengths(flash_params_t *p, int32_t batch, int32_t seqlen_q, int32_t seqlen_k) {
    p->batch = batch;
    p->seqlen_q = seqlen_q;
    p->seqlen_k = seqlen_k;
    p->k_stride = p->v_stride = strides_of(p, random_bits() % 2);
}

/* Makes what smaller problems have in common with this one; lengths are not set. */
static flash_params_t random_kind(const flash_config_t *config) {
    static const int32_t heads[] = {1, 2, 3, 8, 24, 32, 100, 300, 600}, groups[] = {1, 2, 4, 7, 16};
    static const int32_t dims[] = {8, 40, 64, 128, 256, 576};
    static const int32_t some = 0;
    flash_params_t p = {.n_heads_kv = ONE_OF(heads),
                        .group = ONE_OF(groups),
                        .d_head = ONE_OF(dims),
                        .d_head_v = ONE_OF(dims)};
    p.v_dtype = config->dtype;
    p.q_dtype = random_bits() % 2 ? FLASH_DTYPE_FP32 : config->dtype;
    p.o_dtype = random_bits() % 2 ? FLASH_DTYPE_FP32 : config->dtype;
    const uint32_t kind = random_bits() % 8;
    p.n_heads = p.n_heads_kv * p.group;
    p.window_left = random_bits() % 2 ? -1 : random_length(5000);
    p.window_right = random_bits() % 2 ? -1 : 0;
    p.diagonal_offset = random_bits() % 2 ? 0 : random_length(40000) - 20000;
    p.cu_seqlens_q = kind == 1 || kind == 2 ? &some : NULL;
    p.cu_seqlens_k = kind == 2 ? &some : NULL;
    p.seqused_k = kind == 3 || kind == 4 ? &some : NULL;
    p.seqused_q = kind == 4 ? &some : NULL;
    p.pages.rows = kind == 4 ? &some : NULL;
    p.pages.indptr = kind == 2 ? &some : NULL;
    return p;
}

static uint64_t least_of(const flash_config_t *config, const flash_params_t *p) {
    return cpu_workspace_least(cpu_family(config->arch), config, p);
}

static void print_problem(const flash_config_t *c, const flash_params_t *p) {
    print_message(
        "arch %d dtype %d (Q %d) B_r %d B_c %d: batch %d, %d queries, %d keys, %d K/V heads, "
        "group %d, d_head %d, ragged %d %d %d, window %d %d, offset %d\n",
        c->arch, c->dtype, p->q_dtype, c->B_r, c->B_c, p->batch, p->seqlen_q, p->seqlen_k,
        p->n_heads_kv, p->group, p->d_head, p->cu_seqlens_q != NULL, p->cu_seqlens_k != NULL,
        p->seqused_k != NULL, p->window_left, p->window_right, p->diagonal_offset);
}

/* ---- Sizes that suffice ---- */

TEST(what_suffices_for_a_problem_suffices_for_every_smaller_one) {
    for (int i = 0; i < N_PAIRS; i++) {
        const flash_config_t *config = &ONE_OF(CONFIGS);
        flash_params_t large = random_kind(config), small = large;
        set_lengths(&large, 1 + random_length(20), random_length(20000), random_length(200000));
        set_lengths(&small, random_length(large.batch), random_length(large.seqlen_q),
                    random_length(large.seqlen_k));
        if (least_of(config, &small) <= least_of(config, &large))
            continue;
        print_problem(config, &large);
        print_problem(config, &small);
        fail_msg("the smaller problem needs more (problem number %d)", i);
    }
}

/* Each step adds one query, key or sequence, where splits and shared keys begin and end. */
TEST(no_size_falls_from_one_length_to_the_next) {
    for (int i = 0; i < N_CONFIGS; i++) {
        flash_params_t p = {
            .n_heads = 32, .n_heads_kv = 8, .group = 4, .d_head = 64, .d_head_v = 64};
        uint64_t before = 0;
        for (int32_t n = 0; n < 6000; n++) {
            set_lengths(&p, 1, 40, n);
            assert_true(before <= least_of(&CONFIGS[i], &p));
            before = least_of(&CONFIGS[i], &p);
        }
        before = 0;
        for (int32_t n = 0; n < 3000; n++) {
            set_lengths(&p, 2, n, 4000);
            assert_true(before <= least_of(&CONFIGS[i], &p));
            before = least_of(&CONFIGS[i], &p);
        }
    }
}

/* 32 queries and 4096 keys are split; 25 and 2262 are not, and pack all of their keys. */
TEST(a_chunk_that_is_not_split_fits_where_a_larger_one_is) {
    flash_params_t p = {.n_heads = 32, .n_heads_kv = 8, .group = 4, .d_head = 64, .d_head_v = 64};
    const flash_config_t *config = &CONFIGS[2];
    cpu_plan_t plan;
    set_lengths(&p, 1, 32, 4096);
    const uint64_t large = least_of(config, &p);
    set_lengths(&p, 1, 25, 2262);
    assert_int_equal(cpu_plan_make(config, &p, 1, &plan), FLASH_SUCCESS);
    assert_true(cpu_plan_fit(&plan, &p, large));
}

static cpu_plan_t plan_with(const flash_config_t *config, const flash_params_t *p,
                            int32_t n_threads) {
    cpu_plan_t plan;
    assert_int_equal(cpu_plan_make(config, p, n_threads, &plan), FLASH_SUCCESS);
    return plan;
}

/* Many rows of a head share packed keys. Those of latent attention are long, and its heads many. */
TEST(a_bound_on_lengths_is_not_paid_for_without_end) {
    static const int32_t queries[] = {17, 25, 1000}, some = 0;
    for (int i = 0; i < N_CONFIGS; i++)
        for (size_t j = 0; j < sizeof queries / sizeof queries[0]; j++) {
            flash_params_t p = {.n_heads = 16,
                                .n_heads_kv = 1,
                                .group = 16,
                                .d_head = 576,
                                .d_head_v = 512,
                                .seqused_k = &some};
            p.window_left = p.window_right = -1;
            set_lengths(&p, 7, queries[j], 1 << 24);
            const cpu_plan_t plan = plan_with(&CONFIGS[i], &p, 16);
            set_lengths(&p, 7, queries[j], INT32_MAX);
            const cpu_plan_t longest = plan_with(&CONFIGS[i], &p, 16);
            assert_int_equal(cpu_plan_workspace(&longest), cpu_plan_workspace(&plan));
            assert_true(cpu_plan_workspace(&plan) < (uint64_t)6 << 30);
        }
}

/* A workspace that a larger problem asks for leaves a smaller one nearly all of its workers. */
TEST(a_larger_problems_workspace_has_room_for_the_workers) {
    int n_fewer = 0;
    for (int i = 0; i < N_PAIRS; i++) {
        const flash_config_t *config = &ONE_OF(CONFIGS);
        flash_params_t large = random_kind(config), small = large;
        const int32_t n_threads = 1 + random_length(15);
        set_lengths(&large, 1 + random_length(20), 1 + random_length(20000),
                    1 + random_length(200000));
        set_lengths(&small, 1 + random_length(large.batch - 1),
                    1 + random_length(large.seqlen_q - 1), 1 + random_length(large.seqlen_k - 1));
        const cpu_plan_t plan = plan_with(config, &large, n_threads);
        cpu_plan_t smaller = plan_with(config, &small, n_threads);
        assert_true(cpu_plan_fit(&smaller, &small, cpu_plan_workspace(&plan)));
        n_fewer += smaller.n_workers < smaller.max_workers;
    }
    assert_in_range(n_fewer, 0, N_PAIRS / 200);
}

/* ---- Memory in use ---- */

static cpu_plan_t random_plan(flash_params_t *p, int32_t *n_threads) {
    const flash_config_t *config = &ONE_OF(CONFIGS);
    *p = random_kind(config);
    *n_threads = 1 + random_length(MOST_THREADS - 1);
    set_lengths(p, 1 + random_length(20), 1 + random_length(20000), random_length(200000));
    return plan_with(config, p, *n_threads);
}

TEST(a_plan_has_all_it_gains_by_in_what_it_asks_for) {
    for (int i = 0; i < N_PAIRS; i++) {
        flash_params_t p;
        int32_t n_threads;
        const cpu_plan_t plan = random_plan(&p, &n_threads);
        cpu_plan_t fitting = plan;
        assert_false(cpu_plan_fit(&fitting, &p, plan.least_workspace - 1));
        assert_memory_equal(&fitting, &plan, sizeof plan);
        assert_true(cpu_plan_fit(&fitting, &p, cpu_plan_workspace(&plan)));
        assert_memory_equal(&fitting, &plan, sizeof plan);
        assert_int_equal(plan.n_workers, plan.max_workers);
        assert_true(cpu_plan_fit(&fitting, &p, plan.least_workspace));
    }
}

/* Checks that all scratch memory and slots end within the workspace, wherever it begins. */
static void check_use(const cpu_plan_t *wanted, const flash_params_t *p, uint64_t size) {
    const int64_t n_heads = (int64_t)p->batch * p->n_heads_kv;
    cpu_plan_t plan = *wanted;
    if (!cpu_plan_fit(&plan, p, size)) {
        assert_true(size < plan.least_workspace);
        return;
    }
    const uint64_t end = plan.scratch_at + (uint64_t)plan.n_workers * plan.scratch_size +
                         (uint64_t)plan.n_slots * plan.packed_size;
    assert_true(plan.n_workers >= 1 && plan.n_workers <= plan.max_workers);
    assert_true(CPU_WORKSPACE_ALIGNMENT - 1 + end <= size);
    assert_true(plan.n_slots >= min64(plan.max_slots, 1) && plan.n_slots <= wanted->n_slots);
    assert_true(plan.rows_per_task <= wanted->rows_per_task);
    assert_true(plan.n_whole == 0 ||
                plan.n_workers * plan.turns + n_heads - plan.n_whole <= plan.n_slots);
}

TEST(scratch_and_slots_fit_in_every_size) {
    for (int i = 0; i < N_PAIRS / 20; i++) {
        flash_params_t p;
        int32_t n_threads;
        const cpu_plan_t plan = random_plan(&p, &n_threads);
        const uint64_t full = cpu_plan_workspace(&plan);
        for (int32_t n = 1; n <= MOST_THREADS; n++) { /* where one more of something just fits */
            const uint64_t before =
                CPU_WORKSPACE_ALIGNMENT - 1 + plan.scratch_at + (uint64_t)n * plan.scratch_size;
            for (uint64_t slots = 0; slots <= 2 * (uint64_t)n + 2; slots++)
                for (uint64_t more = 0; more < 3; more++)
                    check_use(&plan, &p,
                              min_u64(full, before + slots * plan.packed_size - 1 + more));
        }
        for (uint64_t size = plan.least_workspace; size <= full; size += (full - size) / 50 + 1)
            check_use(&plan, &p, size);
    }
}
