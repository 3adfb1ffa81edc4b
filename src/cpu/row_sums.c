/*
 * Blocks of queries are items of work. Each leaves its part of the gradients of sinks in a place of
 * its own, and the parts are added up in the order of the blocks.
 */
#include "cpu/row_sums.h"

#include "core/int64.h"
#include "cpu/items.h"
#include "kernels/cpu/row_sum.h"

#include <string.h>

enum { QUERIES_PER_ITEM = 64 };

typedef struct row_sums {
    const flash_params_t *p;
    const flash_gradients_t *g;
    double *sink_sums; /* [items, n_heads] */
    int64_t n_blocks;  /* of a sequence */
} row_sums_t;

static void sum_block(void *context, int64_t item, int32_t worker) {
    const row_sums_t *sums = context;
    const int32_t b = (int32_t)(item / sums->n_blocks);
    q_row_t row = {.sequence = flash_sequence(sums->p, b), .batch_index = b};
    const int64_t begin = item % sums->n_blocks * QUERIES_PER_ITEM;
    const int64_t end = min64(begin + QUERIES_PER_ITEM, row.sequence.len_q);
    (void)worker;
    double *of_sinks = sums->sink_sums ? sums->sink_sums + item * sums->p->n_heads : NULL;
    for (int32_t head = 0; of_sinks && head < sums->p->n_heads; head++)
        of_sinks[head] = 0;
    for (row.query = begin; row.query < end; row.query++)
        for (row.head = 0; row.head < sums->p->n_heads; row.head++) {
            const double of_sink = cpu_sum_row(sums->p, sums->g, &row);
            if (of_sinks)
                of_sinks[row.head] += of_sink;
        }
}

static int64_t blocks_of(const flash_params_t *p) {
    return divide_up(p->seqlen_q, QUERIES_PER_ITEM);
}

static void store_sinks(const row_sums_t *sums, int64_t n_items) {
    for (int32_t head = 0; head < sums->p->n_heads; head++) {
        double total = 0;
        for (int64_t item = 0; item < n_items; item++)
            total += sums->sink_sums[item * sums->p->n_heads + head];
        const float d_sink = (float)total;
        memcpy((char *)sums->g->d_sinks + head * sizeof d_sink, &d_sink, sizeof d_sink);
    }
}

uint64_t cpu_sink_sums_size(const problem_t *problem) {
    const flash_params_t *p = &problem->params;
    const uint64_t n_items = (uint64_t)p->batch * (uint64_t)blocks_of(p);
    const uint64_t of_item = (uint64_t)p->n_heads * sizeof(double);
    return problem->gradients.d_sinks ? saturating_multiply(n_items, of_item) : 0;
}

void cpu_row_sums(const problem_t *problem, double *sink_sums, parallel_t *parallel) {
    row_sums_t sums = {.p = &problem->params,
                       .g = &problem->gradients,
                       .sink_sums = problem->gradients.d_sinks ? sink_sums : NULL,
                       .n_blocks = blocks_of(&problem->params)};
    const cpu_items_t items = {
        .n = problem->params.batch * sums.n_blocks, .work = sum_block, .context = &sums};
    cpu_items_run(parallel, parallel->n_workers, &items);
    if (sums.sink_sums)
        store_sinks(&sums, items.n);
}
