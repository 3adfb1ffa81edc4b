/*
 * Blocks of queries are items of work. Each leaves its part of the gradients of sinks in a place of
 * its own, and the parts are added up in the order of the blocks. The places of a batch follow its
 * tokens: a sequence whose rows begin at row r of n_rows has those from r / QUERIES_PER_ITEM + its
 * number on, of which the next sequence's are free.
 */
#include "cpu/row_sums.h"

#include "core/int64.h"
#include "cpu/items.h"
#include "cpu/lengths.h"
#include "kernels/cpu/row_sum.h"

#include <string.h>

enum { QUERIES_PER_ITEM = 64 };

typedef struct row_sums {
    const flash_params_t *p;
    const flash_gradients_t *g;
    double *sink_sums; /* [places, n_heads] */
    int64_t n_blocks;  /* of the longest sequence */
} row_sums_t;

static int64_t blocks_of(int64_t n_queries) {
    return divide_up(n_queries, QUERIES_PER_ITEM);
}

/* Returns the parts of the gradients of sinks of a sequence's block. */
static double *parts_of(const row_sums_t *sums, const flash_sequence_t *s, int32_t b,
                        int64_t block) {
    const int64_t row = flash_row_index(sums->p, sums->g, s, b, 0, 0);
    return sums->sink_sums + (row / QUERIES_PER_ITEM + b + block) * sums->p->n_heads;
}

static void sum_block(void *context, int64_t item, int32_t worker) {
    const row_sums_t *sums = context;
    const int32_t b = (int32_t)(item / sums->n_blocks);
    q_row_t row = {.sequence = flash_sequence(sums->p, b), .batch_index = b};
    const int64_t block = item % sums->n_blocks, begin = block * QUERIES_PER_ITEM;
    const int64_t end = min64(begin + QUERIES_PER_ITEM, row.sequence.len_q);
    (void)worker;
    if (begin >= end)
        return;
    double *of_sinks = sums->sink_sums ? parts_of(sums, &row.sequence, b, block) : NULL;
    for (int32_t head = 0; of_sinks && head < sums->p->n_heads; head++)
        of_sinks[head] = 0;
    for (row.query = begin; row.query < end; row.query++)
        for (row.head = 0; row.head < sums->p->n_heads; row.head++) {
            const double of_sink = cpu_sum_row(sums->p, sums->g, &row);
            if (of_sinks)
                of_sinks[row.head] += of_sink;
        }
}

static double sink_sum(const row_sums_t *sums, int32_t head) {
    double total = 0;
    for (int32_t b = 0; b < sums->p->batch; b++) {
        const flash_sequence_t s = flash_sequence(sums->p, b);
        for (int64_t block = 0; block < blocks_of(s.len_q); block++)
            total += parts_of(sums, &s, b, block)[head];
    }
    return total;
}

static void store_sinks(const row_sums_t *sums) {
    for (int32_t head = 0; head < sums->p->n_heads; head++) {
        const float d_sink = (float)sink_sum(sums, head);
        memcpy((char *)sums->g->d_sinks + head * sizeof d_sink, &d_sink, sizeof d_sink);
    }
}

uint64_t cpu_sink_sums_size(const problem_t *problem) {
    const flash_params_t *p = &problem->params;
    const uint64_t n_rows = (uint64_t)problem->gradients.n_rows;
    const uint64_t n_places = n_rows / QUERIES_PER_ITEM + (uint64_t)p->batch;
    const uint64_t of_place = (uint64_t)p->n_heads * sizeof(double);
    return problem->gradients.d_sinks ? saturating_multiply(n_places, of_place) : 0;
}

void cpu_row_sums(const problem_t *problem, double *sink_sums, parallel_t *parallel) {
    row_sums_t sums = {.p = &problem->params,
                       .g = &problem->gradients,
                       .sink_sums = problem->gradients.d_sinks ? sink_sums : NULL,
                       .n_blocks = blocks_of(cpu_lengths_longest(&problem->params).queries)};
    const cpu_items_t items = {
        .n = problem->params.batch * sums.n_blocks, .work = sum_block, .context = &sums};
    cpu_items_run(parallel, parallel->n_workers, &items);
    if (sums.sink_sums)
        store_sinks(&sums);
}
