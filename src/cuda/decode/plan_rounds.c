#include "cuda/decode/plan_rounds.h"

#include "core/int64.h"
#include "cuda/tuning.h"
#include "kernels/common/decode_parts.h"

/* The tiles of a call, all of the same keys, on a device where a block takes a multiprocessor. */
typedef struct tiles {
    int64_t of_sequence;
    int64_t count;
    int64_t units;    /* of keys, of each */
    int64_t resident; /* that run side by side */
    const round_times_t *times;
} tiles_t;

int64_t selection_batch(const problem_t *problem) {
    return problem->batch_invariant ? 1 : problem->params.batch;
}

/* Queries stand near the sequence's end. */
int64_t estimate_mean_units(const flash_params_t *p) {
    const int64_t keys = problem_most_keys(p);
    const int64_t hidden = p->window_right >= 0 ? min64(p->seqlen_q, keys) / 2 : 0;
    return divide_up(keys - hidden, DECODE_UNIT_KEYS);
}

static tiles_t tiles_of(int32_t B_r, const problem_t *problem, const device_t *device,
                        const round_times_t *times) {
    const flash_params_t *p = &problem->params;
    const int64_t rows = (int64_t)p->seqlen_q * p->group;
    const int64_t of_sequence = max64(divide_up(rows, B_r), 1) * p->n_heads_kv;
    return (tiles_t){.of_sequence = of_sequence,
                     .count = selection_batch(problem) * of_sequence,
                     .units = estimate_mean_units(p),
                     .resident = max64(device->n_multiprocessors, 1),
                     .times = times};
}

static int64_t time_of_pieces(const tiles_t *tiles, int64_t pieces) {
    const int64_t rounds = divide_up(tiles->count * pieces, tiles->resident);
    const int64_t of_piece = divide_up(tiles->units, pieces) * tiles->times->of_unit;
    return rounds * (of_piece + tiles->times->around_block) +
           (pieces > 1 ? tiles->times->of_merge : 0);
}

/* Returns the fewest pieces of a sequence that are no longer than if there were `pieces`. */
static int64_t fewest_pieces(int64_t pieces, int64_t units) {
    const int64_t most = max64(units * DECODE_UNIT_KEYS / PIECE_MIN_KEYS, 1);
    const int64_t wanted = max64(min64(pieces, most), 1);
    return units > 0 ? divide_up(units, divide_up(units, wanted)) : 1;
}

/* Returns the pieces of each sequence: one, or as many as fill one round or two. */
static int64_t best_pieces(const tiles_t *tiles) {
    int64_t best = 1;
    for (int64_t rounds = 1; rounds <= ROUNDS_MAX; rounds++) {
        const int64_t all = rounds * tiles->resident / max64(tiles->count, 1);
        const int64_t pieces = fewest_pieces(all, tiles->units);
        if (time_of_pieces(tiles, pieces) < time_of_pieces(tiles, best))
            best = pieces;
    }
    return best;
}

/* Returns the pieces of a sequence as plan_decode() cuts it by its own length. */
static int64_t invariant_pieces(const tiles_t *tiles, const flash_params_t *p) {
    const int64_t most = max64(tiles->resident / p->n_heads_kv, 1);
    const int64_t pieces = divide_up(p->seqlen_k, tiles->times->invariant_keys);
    return max64(min64(pieces, most), 1);
}

static int64_t pieces_of(const tiles_t *tiles, const problem_t *problem) {
    return problem->batch_invariant ? invariant_pieces(tiles, &problem->params)
                                    : best_pieces(tiles);
}

/* Returns the pieces of all sequences that the device cuts: as many as fill one round, or two where
 * sequences of one length would then take less time by ROUNDS_SECOND_FIFTHS. */
static int64_t pieces_of_batch(const tiles_t *tiles) {
    const int64_t count = max64(tiles->count, 1);
    const int64_t in_one = tiles->resident / count, in_two = 2 * tiles->resident / count;
    const int64_t rounds = ROUNDS_SECOND_FIFTHS * in_two >= 2 * 5 * in_one ? 2 : 1;
    return max64(rounds * tiles->resident / tiles->of_sequence, 1);
}

/* Returns the parts into which a kernel that walks them divides the keys of the batch. */
static int32_t parts_of(const tiles_t *tiles) {
    return (int32_t)max64(tiles->resident / tiles->of_sequence, 1);
}

decode_plan_t plan_rounds(const flash_config_t *config, const problem_t *problem,
                          const device_t *device, const round_times_t *times) {
    const tiles_t tiles = tiles_of(config->B_r, problem, device, times);
    const int64_t pieces = pieces_of(&tiles, problem);
    const decode_limits_t limits = {.resident = tiles.resident,
                                    .most_blocks = ROUNDS_MAX * tiles.resident,
                                    .known_pieces = (int32_t)pieces,
                                    .batch_pieces = (int32_t)pieces_of_batch(&tiles),
                                    .parts = times->walks ? parts_of(&tiles) : 0,
                                    .most_heads = 1,
                                    .least_keys = PIECE_MIN_KEYS,
                                    .long_keys = INT32_MAX,
                                    .invariant_keys = times->invariant_keys};
    return plan_decode(config, problem, device, &limits);
}

/* Says whether that number of blocks gives so many eighths of the multiprocessors one. */
static bool fills(const tiles_t *tiles, int64_t blocks, int64_t eighths) {
    return eighths * tiles->resident <= 8 * blocks;
}

/* Says whether pieces of one round leave few multiprocessors without work. Of lengths that the host
 * does not know this is no more than a guess, and where sequences are whole, a bad one. */
static bool fill_one_round(const tiles_t *tiles, const problem_t *problem) {
    const int64_t pieces = tiles->resident / max64(tiles->count, 1);
    const int64_t least = problem_lengths_are_equal(&problem->params) ? 1 : 2;
    return pieces >= least && fills(tiles, pieces * tiles->count, ROUNDS_PIECES_EIGHTHS);
}

bool parts_pay(int32_t B_r, const problem_t *problem, const device_t *device) {
    const tiles_t tiles = tiles_of(B_r, problem, device, NULL);
    return !fill_one_round(&tiles, problem) && tiles.resident >= tiles.of_sequence &&
           fills(&tiles, parts_of(&tiles) * tiles.of_sequence, ROUNDS_PARTS_EIGHTHS);
}

const char *parts_obstacle(const problem_t *problem) {
    const flash_params_t *p = &problem->params;
    const int64_t costs =
        divide_up(problem_most_keys(p), DECODE_UNIT_KEYS) + DECODE_UNITS_AROUND + 1;
    if (problem->batch_invariant)
        return "persistent decode kernels divide the keys of the whole batch, which "
               "FLASH_FLAG_BATCH_INVARIANT does not allow";
    return costs >= INT32_MAX / max64(p->batch, 1)
               ? "persistent decode kernels count the keys of the batch in 31 bits"
               : NULL;
}

int64_t estimate_round_count(int32_t B_r, const problem_t *problem, const device_t *device) {
    const tiles_t tiles = tiles_of(B_r, problem, device, NULL);
    return divide_up(tiles.count, tiles.resident);
}

int64_t estimate_rounds(int32_t B_r, const problem_t *problem, const device_t *device,
                        const round_times_t *times) {
    const tiles_t tiles = tiles_of(B_r, problem, device, times);
    return time_of_pieces(&tiles, pieces_of(&tiles, problem));
}
