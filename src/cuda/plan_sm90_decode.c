/*
 * See plan_sm90_decode.h.
 */
#include "cuda/plan_sm90_decode.h"

enum {
    /* Where pieces leave many multiprocessors without work, more of them take a second round. */
    MOST_ROUNDS = 2,
    LEAST_PIECE_KEYS = 128,
    INVARIANT_PIECE_KEYS = 2048,
    FORWARD_ROWS = 128 /* of a tile of the SM90 family */
};

/* Estimates, in units of keys: what a block costs beside its keys, a tile of the SM90 family, whose
 * blocks take tile after tile, and the kernel that merges. */
enum { UNITS_AROUND_BLOCK = 6, UNITS_AROUND_TILE = 4, UNITS_OF_MERGE = 4 };

/* What a unit of keys costs, in tenths: a tile of few rows still reads all of K and V. */
enum { COST_OF_64_ROWS = 7, COST_OF_128_ROWS = 10 };

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Each block takes a whole multiprocessor. */
static int64_t resident_blocks(const device_t *device) {
    return max64(device->n_multiprocessors, 1);
}

/* A batch as the choice may see it. */
static int64_t seen_batch(const problem_t *problem) {
    return problem->batch_invariant ? 1 : problem->params.batch;
}

/* Estimates the units that a query sees in the mean: most of them stand near the sequence's end. */
static int64_t mean_units(const flash_params_t *p) {
    const int64_t keys = problem_most_keys(p);
    const int64_t hidden = p->window_right >= 0 ? min64(p->seqlen_q, keys) / 2 : 0;
    return ceil_div(keys - hidden, DECODE_UNIT_KEYS);
}

/* Tiles of B_r rows of a sequence, of all K/V heads. */
static int64_t tiles_of_sequence(const flash_params_t *p, int32_t B_r) {
    const int64_t rows = (int64_t)p->seqlen_q * p->group;
    return max64(ceil_div(rows, B_r), 1) * p->n_heads_kv;
}

/* The time of so many tiles, each cut into so many pieces, in units. */
static int64_t time_of_pieces(int64_t tiles, int64_t pieces, int64_t units, int64_t resident) {
    const int64_t rounds = ceil_div(tiles * pieces, resident);
    return rounds * (ceil_div(units, pieces) + UNITS_AROUND_BLOCK) +
           (pieces > 1 ? UNITS_OF_MERGE : 0);
}

/* The fewest pieces of a sequence with which they are as short as with so many. */
static int64_t fewest_pieces(int64_t pieces, int64_t units) {
    const int64_t most = max64(units * DECODE_UNIT_KEYS / LEAST_PIECE_KEYS, 1);
    const int64_t wanted = max64(min64(pieces, most), 1);
    return units > 0 ? ceil_div(units, ceil_div(units, wanted)) : 1;
}

/* Pieces of each sequence: one, or as many as fill one round or more. */
static int64_t best_pieces(int64_t tiles, int64_t units, int64_t resident) {
    int64_t best = 1;
    for (int64_t rounds = 1; rounds <= MOST_ROUNDS; rounds++) {
        const int64_t pieces = fewest_pieces(rounds * resident / max64(tiles, 1), units);
        if (time_of_pieces(tiles, pieces, units, resident) <
            time_of_pieces(tiles, best, units, resident))
            best = pieces;
    }
    return best;
}

static int64_t pieces_of_problem(int32_t B_r, const problem_t *problem, const device_t *device) {
    const flash_params_t *p = &problem->params;
    const int64_t tiles = seen_batch(problem) * tiles_of_sequence(p, B_r);
    if (problem->batch_invariant)
        return max64(ceil_div(p->seqlen_k, INVARIANT_PIECE_KEYS), 1);
    return best_pieces(tiles, mean_units(p), resident_blocks(device));
}

/* Pieces of all sequences that the device cuts: as many as fill the rounds that equal lengths would
 * take. */
static int64_t pieces_of_batch(int64_t batch, int64_t tiles, int64_t pieces, int64_t resident) {
    const int64_t rounds = min64(ceil_div(batch * tiles * pieces, resident), MOST_ROUNDS);
    return max64(rounds * resident / max64(tiles, 1), 1);
}

decode_plan_t plan_sm90_decode(const flash_config_t *config, const problem_t *problem,
                               const device_t *device) {
    const flash_params_t *p = &problem->params;
    const int64_t resident = resident_blocks(device);
    const int64_t tiles = tiles_of_sequence(p, config->B_r);
    const int64_t pieces = pieces_of_problem(config->B_r, problem, device);
    const decode_limits_t limits = {.resident = resident,
                                    .most_blocks = MOST_ROUNDS * resident,
                                    .known_pieces = (int32_t)pieces,
                                    .batch_pieces =
                                        (int32_t)pieces_of_batch(p->batch, tiles, pieces, resident),
                                    .most_heads = 1,
                                    .least_keys = LEAST_PIECE_KEYS,
                                    .long_keys = INT32_MAX,
                                    .invariant_keys = INVARIANT_PIECE_KEYS};
    return plan_decode(config, problem, device, &limits);
}

int64_t estimate_sm90_decode(int32_t B_r, const problem_t *problem, const device_t *device) {
    const flash_params_t *p = &problem->params;
    const int64_t tiles = seen_batch(problem) * tiles_of_sequence(p, B_r);
    const int64_t cost = B_r > 64 ? COST_OF_128_ROWS : COST_OF_64_ROWS;
    return cost * time_of_pieces(tiles, pieces_of_problem(B_r, problem, device), mean_units(p),
                                 resident_blocks(device));
}

int64_t estimate_sm90_forward(const problem_t *problem, const device_t *device) {
    const flash_params_t *p = &problem->params;
    const int64_t tiles = seen_batch(problem) * p->n_heads * ceil_div(p->seqlen_q, FORWARD_ROWS);
    return COST_OF_128_ROWS * ceil_div(tiles, resident_blocks(device)) *
           (mean_units(p) + UNITS_AROUND_TILE);
}
