/*
 * The keys of a batch are divided into parts (kernels/common/decode_parts.h): every unit is in one
 * piece, parts are about equal, and the pieces of sequences that are cut have places of their own.
 */
#include "core/int64.h"
#include "cuda/decode/plan_rounds.h"
#include "kernels/common/decode_parts.h"
#include "support.h"

enum { CASES = 20000, MOST_BATCH = 600, MOST_PARTS = 160 };

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}

#define check(seed, condition)                                                                     \
    do {                                                                                           \
        if (!(condition))                                                                          \
            fail_msg("seed %llu: not %s", (unsigned long long)(seed), #condition);                 \
    } while (0)

typedef struct batch {
    int32_t units[MOST_BATCH];
    uint32_t count;
    uint32_t parts;
    uint32_t share;
    uint32_t longest;
} batch_t;

static batch_t random_batch(uint64_t *state) {
    batch_t batch = {.count = 1 + next_random(state) % MOST_BATCH,
                     .parts = 1 + next_random(state) % MOST_PARTS};
    const uint32_t most = 1u << next_random(state) % 12;
    const uint32_t kind = next_random(state) % 3;
    uint32_t total = 0;
    for (uint32_t b = 0; b < batch.count; b++) {
        batch.units[b] = (int32_t)(kind == 0                      ? most
                                   : kind == 1                    ? next_random(state) % (most + 1)
                                   : next_random(state) % 20 == 0 ? 20 * most
                                                                  : 1);
        const uint32_t cost = decode_cost(batch.units[b]);
        batch.longest = cost > batch.longest ? cost : batch.longest;
        total += cost;
    }
    batch.share = decode_part_share(total, batch.longest, batch.count, batch.parts);
    check(*state, (uint64_t)batch.share * batch.parts >= total);
    return batch;
}

static void check_batch(uint64_t seed) {
    uint64_t random = seed;
    const batch_t batch = random_batch(&random);
    uint32_t before = 0, splits = 0, last = 0;
    uint64_t next_place = 0; /* after those of the sequences before */
    uint32_t units_of_part[MOST_PARTS] = {0};
    for (uint32_t b = 0; b < batch.count; b++) {
        const int32_t units = batch.units[b];
        const part_range_t range = decode_parts_of(before, units, batch.share, batch.parts);
        int32_t end = 0;
        check(seed, range.first >= last && range.last >= range.first);
        check(seed, range.last < batch.parts);
        for (uint32_t part = range.first; part <= range.last; part++) {
            const unit_range_t piece = decode_part_units(range, part, before, units, batch.share);
            check(seed, piece.begin == end && (piece.end > piece.begin || units == 0));
            end = piece.end;
            units_of_part[part] += (uint32_t)(piece.end - piece.begin);
        }
        check(seed, end == units);
        if (range.last > range.first) {
            check(seed, range.first + splits >= next_place);
            next_place = (uint64_t)range.last + splits + 1;
            splits++;
        }
        last = range.last;
        before += decode_cost(units);
    }
    check(seed, splits < batch.parts && next_place <= 2 * (uint64_t)batch.parts);
    for (uint32_t part = 0; part < batch.parts; part++)
        check(seed, units_of_part[part] <= batch.share + 2 * DECODE_UNITS_SNAPPED);
}

TEST(every_unit_is_in_one_piece_of_about_equal_parts) {
    for (uint64_t seed = 0; seed < CASES; seed++)
        check_batch(seed);
}

TEST(sequences_of_one_length_stay_whole_where_parts_are_hardly_longer) {
    const uint32_t cost = decode_cost(64);
    assert_int_equal(decode_part_share(128 * cost, cost, 128, 66), 2 * cost);
    assert_int_equal(decode_part_share(128 * cost, cost, 128, 33), 4 * cost);
    assert_int_equal(decode_part_share(100 * cost, cost, 100, 66), 100 * cost / 66);
}

/* ---- The host's plan ---- */

typedef struct parts_case {
    int32_t batch;
    int32_t rows; /* of a sequence: queries x query heads */
    int32_t parts;
    bool pay;
} parts_case_t;

static problem_t problem_of(const parts_case_t *c) {
    return (problem_t){.params = {.batch = c->batch,
                                  .seqlen_q = 1,
                                  .seqlen_k = 4096,
                                  .n_heads = c->rows,
                                  .n_heads_kv = 1,
                                  .group = c->rows,
                                  .window_left = -1,
                                  .window_right = -1}};
}

static const flash_config_t config = {.d_head = 576, .d_head_v = 512, .B_r = 64};
static const device_t device = {.n_multiprocessors = 132};
static const round_times_t times = {
    .of_unit = 10, .around_block = 30, .of_merge = 20, .invariant_keys = 2048, .walks = true};

TEST(parts_pay_where_pieces_do_not_fill_one_round) {
    static const parts_case_t cases[] = {
        {1, 16, 132, false},   {16, 16, 132, false}, {64, 16, 132, false}, {80, 16, 132, true},
        {128, 16, 132, false}, {160, 16, 132, true}, {50, 128, 66, false}, {64, 128, 66, false},
        {128, 128, 66, true},  {128, 256, 33, true}, {2, 6400, 1, false},  {2, 64000, 1, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const problem_t problem = problem_of(&cases[i]);
        const decode_plan_t plan = plan_rounds(&config, &problem, &device, &times);
        const int64_t of_sequence = divide_up(cases[i].rows, 64);
        assert_int_equal(parts_pay(config.B_r, &problem, &device), cases[i].pay);
        assert_int_equal(plan.params.parts, cases[i].parts);
        assert_int_equal(plan.blocks, cases[i].parts * of_sequence);
        assert_true(cases[i].parts == 1 || 2 * plan.blocks <= plan.slots);
        assert_int_equal(plan.params.pieces, 0);
    }
}

TEST(batches_that_cannot_be_divided_are_refused) {
    problem_t problem = problem_of(&(parts_case_t){.batch = 100000, .rows = 16});
    assert_null(parts_obstacle(&problem));
    problem.params.seqlen_k = INT32_MAX;
    assert_non_null(strstr(parts_obstacle(&problem), "31 bits"));
    problem.params.seqlen_k = 1;
    problem.batch_invariant = true;
    assert_non_null(strstr(parts_obstacle(&problem), "FLASH_FLAG_BATCH_INVARIANT"));
}

TEST(the_workspace_suffices_for_smaller_batches) {
    const parts_case_t most = {.batch = 400, .rows = 256};
    for (int known = 0; known <= 1; known++) {
        uint64_t before = 0;
        for (int32_t batch = 1; batch <= most.batch; batch++) {
            problem_t problem = problem_of(&(parts_case_t){.batch = batch, .rows = most.rows});
            static const int32_t on_device[1];
            problem.params.seqused_k = known ? NULL : on_device;
            const decode_plan_t plan = plan_rounds(&config, &problem, &device, &times);
            assert_true(plan_decode_workspace(&plan) >= before);
            before = plan_decode_workspace(&plan);
        }
    }
}
