/*
 * The plans of decode calls on described devices: the workspace suffices, the host cuts lengths
 * that it knows, and what blocks cut themselves (piece.cuh) fits what the host has made room for.
 * Every case follows from its seed, which a failure names.
 */
#include "core/int64.h"
#include "cuda/decode/plan_sm90_decode.h"
#include "kernels/common/decode_cut.h"
#include "kernels/common/kv.h"
#include "support.h"

enum { CASES = 20000, CUTS = 1500, MOST_BATCH = 4096, MOST_HEADS = 128, UNIT = DECODE_UNIT_KEYS };

typedef struct decode_case {
    flash_config_t config;
    problem_t problem;
    device_t device;
} decode_case_t;

/* ---- Random cases ---- */

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}

/* Returns a number of low ... high. */
static int32_t uniform(uint64_t *state, int32_t low, int32_t high) {
    return low + (int32_t)(next_random(state) % ((uint32_t)high - (uint32_t)low + 1));
}

/* Returns 1 ... most, with every magnitude equally likely. */
static int32_t magnitude(uint64_t *state, int32_t most) {
    int bits = 0;
    while (bits < 30 && (2 << bits) <= most)
        bits++;
    const int32_t below = 1 << uniform(state, 0, bits);
    const int32_t n = uniform(state, below, 2 * below - 1);
    return n < most ? n : most;
}

static flash_config_t random_sm90_config(uint64_t *state) {
    const int32_t consumers = uniform(state, 1, 2);
    return (flash_config_t){.arch = FLASH_ARCH_SM90_DECODE,
                            .dtype = FLASH_DTYPE_BF16,
                            .d_head = 64 << uniform(state, 0, 2),
                            .B_r = 64 * consumers,
                            .B_c = 128,
                            .n_warps = 4 + 4 * consumers,
                            .n_stages = 2};
}

static flash_config_t random_sm80_config(uint64_t *state) {
    static const int32_t shapes[][4] = {
        /* d_head, B_c, n_warps, n_stages */
        {64, 32, 4, 3}, {64, 16, 8, 2}, {128, 16, 4, 3}, {128, 32, 4, 2}, {256, 16, 4, 2},
    };
    const int32_t *shape = shapes[uniform(state, 0, 4)];
    return (flash_config_t){.arch = FLASH_ARCH_SM80_DECODE,
                            .dtype = FLASH_DTYPE_BF16,
                            .d_head = shape[0],
                            .d_head_v = shape[0],
                            .B_r = uniform(state, 0, 1) ? 16 : 8,
                            .B_c = shape[1],
                            .n_warps = shape[2],
                            .n_stages = shape[3]};
}

/* Returns a configuration of either family. */
static flash_config_t random_config(uint64_t *state) {
    return uniform(state, 0, 1) ? random_sm90_config(state) : random_sm80_config(state);
}

/* It stands for an array on a device, which no test reads. */
static const int32_t on_device[1];

/* In half of the cases the host knows all lengths. */
static void randomise_lengths(uint64_t *state, flash_params_t *p) {
    if (uniform(state, 0, 1))
        return;
    p->seqused_k = uniform(state, 0, 1) ? on_device : NULL;
    p->seqused_q = uniform(state, 0, 3) ? NULL : on_device;
    p->cu_seqlens_q = uniform(state, 0, 3) ? NULL : on_device;
    p->cu_seqlens_k = uniform(state, 0, 3) ? NULL : on_device;
    if (uniform(state, 0, 1))
        p->pages = (flash_pages_t){.page_size = magnitude(state, 256), .table = on_device};
}

static problem_t random_problem(uint64_t *state) {
    problem_t problem = {.dtype = FLASH_DTYPE_BF16};
    flash_params_t *p = &problem.params;
    problem.batch_invariant = uniform(state, 0, 2) == 0;
    p->batch = magnitude(state, MOST_BATCH);
    p->seqlen_q = uniform(state, 1, 8);
    p->seqlen_k = uniform(state, 0, 9) ? magnitude(state, 1 << 20) : 0;
    p->group = magnitude(state, 16);
    p->n_heads_kv = magnitude(state, MOST_HEADS / p->group);
    p->n_heads = p->n_heads_kv * p->group;
    p->d_head = p->d_head_v = 64;
    p->window_left = uniform(state, 0, 3) ? -1 : magnitude(state, 1 << 20) - 1;
    p->window_right = uniform(state, 0, 2) - 1;
    p->attention_chunk = uniform(state, 0, 3) ? 0 : magnitude(state, 1 << 20);
    p->by_attention_chunk = flash_divider(p->attention_chunk > 0 ? p->attention_chunk : 1);
    randomise_lengths(state, p);
    return problem;
}

static decode_case_t random_case(uint64_t *state) {
    decode_case_t c = {.config = random_config(state), .problem = random_problem(state)};
    if (c.config.arch == FLASH_ARCH_SM90_DECODE)
        c.problem.params.seqlen_q = magnitude(state, 512);
    c.device = (device_t){.number = FLASH_DEVICE_CUDA,
                          .compute_capability = 90,
                          .n_multiprocessors = uniform(state, 1, 160),
                          .shared_memory_per_block = 227 * 1024};
    return c;
}

static decode_plan_t plan_of(const decode_case_t *c) {
    return c->config.arch == FLASH_ARCH_SM90_DECODE
               ? plan_sm90_decode(&c->config, &c->problem, &c->device)
               : plan_sm80_decode(&c->config, &c->problem, &c->device);
}

#define check(seed, condition)                                                                     \
    do {                                                                                           \
        if (!(condition))                                                                          \
            fail_msg("seed %llu: not %s", (unsigned long long)(seed), #condition);                 \
    } while (0)

static bool lengths_are_known(const problem_t *problem) {
    const flash_params_t *p = &problem->params;
    return !p->seqused_k && !p->seqused_q && !p->cu_seqlens_q && !p->cu_seqlens_k;
}

/* Says whether the plan gives every sequence the pieces that fill the device. */
static bool fills_the_device(const problem_t *problem) {
    return !problem->batch_invariant && lengths_are_known(problem);
}

/* ---- Cuts by the host ---- */

TEST(the_workspace_suffices_for_smaller_calls) {
    for (uint64_t seed = 0; seed < CASES; seed++) {
        uint64_t random = seed;
        decode_case_t c = random_case(&random);
        flash_params_t *p = &c.problem.params;
        const decode_plan_t plan = plan_of(&c);
        p->batch = uniform(&random, 1, p->batch);
        p->seqlen_q = uniform(&random, 1, p->seqlen_q);
        p->seqlen_k = uniform(&random, 0, p->seqlen_k);
        const decode_plan_t smaller = plan_of(&c);
        check(seed, plan_decode_workspace(&smaller) <= plan_decode_workspace(&plan));
    }
}

/* For fewer queries, selection may take a row with fewer rows of Q. */
TEST(the_workspace_of_the_largest_tile_suffices_for_smaller_tiles) {
    for (uint64_t seed = 0; seed < CASES; seed++) {
        uint64_t random = seed;
        decode_case_t c = random_case(&random);
        const int32_t rows = c.config.arch == FLASH_ARCH_SM90_DECODE ? 64 : 8;
        const int32_t queries = rows / c.problem.params.group; /* in the smaller tile */
        if (queries == 0)
            continue;
        c.config.B_r = 2 * rows;
        c.problem.params.seqlen_q = queries + 1;
        const decode_plan_t large = plan_of(&c);
        c.config.B_r = rows;
        c.problem.params.seqlen_q = queries;
        const decode_plan_t small = plan_of(&c);
        check(seed, plan_decode_workspace(&small) <= plan_decode_workspace(&large));
    }
}

TEST(known_lengths_are_cut_to_fill_the_device) {
    for (uint64_t seed = 0; seed < CASES; seed++) {
        uint64_t random = seed;
        const decode_case_t c = random_case(&random);
        if (!fills_the_device(&c.problem))
            continue;
        const decode_plan_t plan = plan_of(&c);
        const sm80_decode_params_t *params = &plan.params;
        const flash_params_t *p = &params->attention;
        const int64_t items = (int64_t)p->batch * params->row_tiles * params->head_blocks;
        check(seed, params->pieces >= 1);
        check(seed, plan.blocks == items * params->pieces);
        check(seed, plan.splits == (params->pieces > 1 ? p->batch : 0));
        check(seed,
              plan.merge_parts == plan.splits * p->n_heads * p->seqlen_q * plan.params.row_parts);
        if (params->pieces > 1) {
            check(seed, plan.blocks <= plan.slots);
            check(seed, params->heads_per_block == 1); /* a slot has the rows of one head */
            check(seed, (int64_t)(params->pieces - 1) * 2 * UNIT < p->seqlen_k);
        }
    }
}

TEST(the_heads_of_a_block_divide_heads_and_warps) {
    bool seen[DECODE_MOST_HEADS_PER_BLOCK + 1] = {false};
    for (uint64_t seed = 0; seed < CASES; seed++) {
        uint64_t random = seed;
        const decode_case_t c = random_case(&random);
        const sm80_decode_params_t params = plan_of(&c).params;
        const int32_t heads = params.heads_per_block;
        check(seed, heads == 1 || heads == 2 || heads == 4);
        check(seed, c.config.n_warps % heads == 0);
        check(seed, params.head_blocks * heads == params.attention.n_heads_kv);
        check(seed, heads == 1 || fills_the_device(&c.problem));
        check(seed, params.row_tiles * c.config.B_r >=
                        params.attention.seqlen_q * params.attention.group);
        seen[heads] = true;
    }
    assert_true(seen[1] && seen[2] && seen[4]);
}

static void check_same_plan(uint64_t seed, const decode_plan_t *a, const decode_plan_t *b) {
    check(seed, a->params.heads_per_block == b->params.heads_per_block);
    check(seed, a->params.head_blocks == b->params.head_blocks);
    check(seed, a->params.row_tiles == b->params.row_tiles);
    check(seed, a->params.pieces == b->params.pieces);
    check(seed, a->params.busy_pieces == b->params.busy_pieces);
    check(seed, a->params.most_pieces == b->params.most_pieces);
    check(seed, a->params.long_share == b->params.long_share);
    check(seed, a->params.least_share == b->params.least_share);
    check(seed, a->blocks == b->blocks);
    check(seed, a->splits == b->splits);
    check(seed, a->merge_parts == b->merge_parts);
    check(seed, a->slots == b->slots);
}

/* An engine announces its longest context, and a captured graph serves every length up to it. */
TEST(lengths_on_the_device_leave_no_trace_of_their_bound) {
    for (uint64_t seed = 0; seed < CASES; seed++) {
        uint64_t random = seed;
        decode_case_t c = random_case(&random);
        if (lengths_are_known(&c.problem))
            continue;
        const decode_plan_t plan = plan_of(&c);
        c.problem.params.seqlen_k = magnitude(&random, 1 << 20);
        const decode_plan_t other = plan_of(&c);
        check(seed, plan.params.pieces == 0 && other.params.pieces == 0);
        if (c.problem.batch_invariant)
            check(seed, plan.params.least_share == other.params.least_share);
        else
            check_same_plan(seed, &plan, &other);
    }
}

/* The pieces of a sequence follow from its own length, the K/V heads and the device. */
TEST(a_batch_invariant_cut_looks_at_no_neighbour) {
    for (uint64_t seed = 0; seed < CASES; seed++) {
        uint64_t random = seed;
        decode_case_t c = random_case(&random);
        flash_params_t *p = &c.problem.params;
        c.problem.batch_invariant = true;
        const sm80_decode_params_t of_batch = plan_of(&c).params;
        p->batch = 1;
        p->seqlen_q = uniform(&random, 1, p->seqlen_q);
        const sm80_decode_params_t alone = plan_of(&c).params;
        check(seed, of_batch.most_pieces == 0 && alone.most_pieces == 0);
        check(seed, of_batch.heads_per_block == 1 && alone.heads_per_block == 1);
        check(seed, of_batch.least_share == alone.least_share);
        check(seed, of_batch.own_pieces == alone.own_pieces);
    }
}

static int32_t count_units(const flash_params_t *p, int32_t b);

/* The device finds the same pieces if it alone knows the lengths. */
TEST(known_lengths_are_cut_as_the_device_cuts_them) {
    for (uint64_t seed = 0; seed < CASES; seed++) {
        uint64_t random = seed;
        decode_case_t c = random_case(&random);
        flash_params_t *p = &c.problem.params;
        c.problem.batch_invariant = true;
        p->pages = (flash_pages_t){0};
        p->seqused_k = p->seqused_q = p->cu_seqlens_q = p->cu_seqlens_k = NULL;
        const decode_plan_t known = plan_of(&c);
        p->seqused_k = on_device;
        const decode_plan_t unknown = plan_of(&c);
        p->seqused_k = NULL;
        const decode_cut_t cut = decode_own_cut(&unknown.params);
        check(seed, known.params.pieces == decode_count_pieces(count_units(p, 0), cut));
        check(seed, known.blocks <= unknown.blocks && known.slots == unknown.slots);
    }
}

/* ---- Cuts of SM90_DECODE ---- */

typedef struct chunk_case {
    int32_t batch, seqlen_q, seqlen_k;
    int32_t pieces; /* where the host cuts */
    int32_t most;   /* of the batch, where the device cuts */
} chunk_case_t;

/* There are 8 K/V heads of 4 query heads, and 132 multiprocessors. */
static void check_chunks(const chunk_case_t *c) {
    const flash_config_t config = {.d_head = 128, .B_r = 128};
    const device_t device = {.n_multiprocessors = 132};
    problem_t problem = {.params = {.batch = c->batch,
                                    .seqlen_q = c->seqlen_q,
                                    .seqlen_k = c->seqlen_k,
                                    .n_heads = 32,
                                    .n_heads_kv = 8,
                                    .group = 4,
                                    .window_left = -1}};
    assert_int_equal(plan_sm90_decode(&config, &problem, &device).params.pieces, c->pieces);
    problem.params.seqused_k = on_device;
    assert_int_equal(plan_sm90_decode(&config, &problem, &device).params.most_pieces, c->most);
}

TEST(chunks_are_cut_to_fill_the_multiprocessors) {
    static const chunk_case_t cases[] = {
        {1, 128, 8192, 4, 4},  /* 32 tiles: 128 blocks */
        {8, 16, 4096, 2, 16},  /* 64 tiles */
        {1, 288, 8192, 3, 3},  /* 72 tiles: two rounds */
        {10, 32, 8192, 3, 33}, /* 80 tiles: two rounds */
        {1, 512, 8192, 1, 1},  /* 128 tiles stay whole */
        {1, 32, 128, 1, 16},   /* shorter pieces cost more than they save */
        {1, 128, 0, 1, 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_chunks(&cases[i]);
}

/* ---- Cuts by blocks, as in kernels/common/decode/cut_block.cuh ---- */

static int32_t count_units(const flash_params_t *p, int32_t b) {
    flash_sequence_t s = flash_sequence(p, b);
    s.len_k = s.len_k < p->seqlen_k ? s.len_k : p->seqlen_k;
    const unit_range_t units = decode_visible_units(p, &s);
    return units.end - units.begin;
}

static int64_t count_all_pieces(const flash_params_t *p, int32_t share) {
    int64_t pieces = 0;
    for (int32_t b = 0; b < p->batch; b++)
        pieces += decode_count_pieces(count_units(p, b), decode_cut_by(share));
    return pieces;
}

static decode_cut_t cut_of(const sm80_decode_params_t *params, int64_t units) {
    if (params->most_pieces == 0)
        return decode_own_cut(params);
    const int32_t first = decode_first_share(params, divide_up(units, params->busy_pieces),
                                             divide_up(units, params->most_pieces));
    for (int32_t i = 0; i < DECODE_N_SHARES; i++)
        if (count_all_pieces(&params->attention, decode_nth_share(first, i)) <= params->most_pieces)
            return decode_cut_by(decode_nth_share(first, i));
    return decode_cut_by(first);
}

typedef struct cut_counts {
    int64_t pieces;
    int64_t cut_pieces; /* of sequences that are cut; they have the first numbers */
    int64_t cut_sequences;
} cut_counts_t;

static cut_counts_t cut_batch(const sm80_decode_params_t *params) {
    const flash_params_t *p = &params->attention;
    int64_t units = 0;
    cut_counts_t counts = {0, 0, 0};
    for (int32_t b = 0; b < p->batch; b++)
        units += count_units(p, b);
    const decode_cut_t cut = cut_of(params, units);
    for (int32_t b = 0; b < p->batch; b++) {
        const int64_t pieces = decode_count_pieces(count_units(p, b), cut);
        counts.pieces += pieces;
        counts.cut_pieces += pieces > 1 ? pieces : 0;
        counts.cut_sequences += pieces > 1;
    }
    return counts;
}

/* Draws lengths of a batch: equal, of every magnitude, one long one, or the bound. */
static void draw_lengths(uint64_t *state, int32_t *lengths, int32_t batch, int32_t most) {
    const int32_t kind = uniform(state, 0, 3);
    const int32_t typical = magnitude(state, most);
    for (int32_t b = 0; b < batch; b++)
        lengths[b] = kind == 0   ? uniform(state, typical / 2, typical)
                     : kind == 1 ? magnitude(state, most) - 1
                     : kind == 2 ? uniform(state, 0, most < 200 ? most : 200)
                                 : most;
    if (kind == 2)
        lengths[uniform(state, 0, batch - 1)] = most;
}

static void draw_queries(uint64_t *state, int32_t *begins, int32_t batch, int32_t most) {
    begins[0] = 0;
    for (int32_t b = 0; b < batch; b++)
        begins[b + 1] = begins[b] + uniform(state, 0, most);
}

static void check_cut(uint64_t seed) {
    static int32_t keys[MOST_BATCH], begins[MOST_BATCH + 1];
    uint64_t random = seed;
    decode_case_t c = random_case(&random);
    flash_params_t *p = &c.problem.params;
    p->seqlen_k = p->seqlen_k > 0 ? p->seqlen_k : 1;
    draw_lengths(&random, keys, p->batch, p->seqlen_k);
    draw_queries(&random, begins, p->batch, p->seqlen_q);
    p->seqused_k = keys;
    p->cu_seqlens_k = p->seqused_q = NULL;
    p->cu_seqlens_q = p->cu_seqlens_q ? begins : NULL;
    const decode_plan_t plan = plan_of(&c);
    const cut_counts_t cut = cut_batch(&plan.params);
    const int64_t of_sequence = (int64_t)plan.params.row_tiles * plan.params.head_blocks;
    check(seed, plan.params.heads_per_block == 1);
    check(seed, cut.pieces * of_sequence <= plan.blocks);
    check(seed, cut.cut_pieces * of_sequence <= plan.slots);
    check(seed, cut.cut_sequences <= plan.splits);
    check(seed, plan.merge_parts == plan.splits * p->n_heads * p->seqlen_q * plan.params.row_parts);
}

TEST(what_blocks_cut_fits_what_the_host_made_room_for) {
    for (uint64_t seed = 0; seed < CUTS; seed++)
        check_cut(seed);
}

/* ---- The workspace ---- */

typedef struct part {
    uintptr_t begin;
    uint64_t bytes;
    uint64_t alignment;
} part_t;

static void check_parts(uint64_t seed, const part_t *parts, int n, part_t workspace) {
    for (int i = 0; i < n; i++) {
        const part_t *a = &parts[i];
        check(seed, a->begin % a->alignment == 0);
        check(seed, a->begin >= workspace.begin);
        check(seed, a->begin + a->bytes <= workspace.begin + workspace.bytes);
        for (int j = 0; j < i; j++) {
            const part_t *b = &parts[j];
            check(seed, a->begin + a->bytes <= b->begin || b->begin + b->bytes <= a->begin);
        }
    }
}

static void check_places(uint64_t seed) {
    uint64_t random = seed;
    const decode_case_t c = random_case(&random);
    decode_plan_t plan = plan_of(&c);
    const uintptr_t begin = ((uintptr_t)1 << 40) + (uintptr_t)(seed % 512);
    const uint64_t rows = (uint64_t)plan.slots * (uint64_t)c.config.B_r;
    plan_decode_place(&plan, (void *)begin);
    const sm80_decode_params_t *p = &plan.params;
    const part_t parts[] = {
        {(uintptr_t)p->partial_o, rows * (uint64_t)c.config.d_head * sizeof(float), 16},
        {(uintptr_t)p->partial_weights, rows * sizeof(decode_weight_t), sizeof(decode_weight_t)},
        {(uintptr_t)p->splits, (uint64_t)plan.splits * sizeof(decode_split_t), sizeof(int32_t)},
        {(uintptr_t)p->n_splits, sizeof(int32_t), sizeof(int32_t)},
    };
    check_parts(seed, parts, 4, (part_t){begin, plan_decode_workspace(&plan), 1});
}

/* Known lengths need no list of splits, which are numbered like their sequences. */
TEST(all_parts_lie_in_the_workspace_wherever_it_begins) {
    for (uint64_t seed = 0; seed < CASES; seed++)
        check_places(seed);
}
