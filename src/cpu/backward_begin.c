/*
 * The workspace of a backward call begins with
 *
 *     | lengths | row_d | row_log_sum | parts of the gradients of sinks | rest |
 *
 * each at a multiple of 64 bytes: copies of the call's lengths (lengths.h), fp32 [n_heads, n_rows]
 * twice, and double (row_sums.h). The rest is scratch of the kernels.
 */
#include "cpu/backward_begin.h"

#include "core/int64.h"
#include "core/status.h"
#include "cpu/lengths.h"
#include "cpu/row_sums.h"
#include "cpu/unused_rows.h"
#include "kernels/cpu/tuning.h"

/* Returns the bytes of a part. */
static uint64_t whole_lines(uint64_t size) {
    const uint64_t last = saturating_add(size, CACHE_LINE - 1);
    return last == UINT64_MAX ? last : last / CACHE_LINE * CACHE_LINE;
}

static uint64_t rows_size(const problem_t *problem) {
    const uint64_t n_heads = (uint64_t)problem->params.n_heads;
    const uint64_t of_head =
        saturating_multiply((uint64_t)problem->gradients.n_rows, sizeof(float));
    return whole_lines(saturating_multiply(n_heads, of_head));
}

uint64_t cpu_backward_begin_size(const problem_t *problem) {
    const uint64_t rows = saturating_multiply(2, rows_size(problem));
    const uint64_t lengths = cpu_lengths_size(&problem->params) + CACHE_LINE - 1;
    const uint64_t sinks = whole_lines(cpu_sink_sums_size(problem));
    return saturating_add(saturating_add(lengths, rows), sinks);
}

/* Divides the workspace. Returns the place of the parts of the gradients of sinks. */
static double *divide_workspace(problem_t *problem) {
    char *begin = problem->workspace;
    char *lengths = (char *)(((uintptr_t)begin + CACHE_LINE - 1) & ~(uintptr_t)(CACHE_LINE - 1));
    char *rows = lengths + cpu_lengths_size(&problem->params);
    char *sinks = rows + 2 * rows_size(problem);
    char *rest = sinks + whole_lines(cpu_sink_sums_size(problem));
    const cpu_totals_t totals = {problem->total_q, problem->total_k, problem->page_limits};
    cpu_lengths_copy(&problem->params, &totals, lengths);
    problem->gradients.row_d = (float *)(void *)rows;
    problem->gradients.row_log_sum = (float *)(void *)(rows + rows_size(problem));
    problem->workspace = rest;
    problem->workspace_size -= (uint64_t)(rest - begin);
    return (double *)(void *)sinks;
}

flash_status_t cpu_backward_begin(problem_t *problem) {
    parallel_t parallel;
    FLASH_TRY(parallel_acquire(&problem->executor, &parallel));
    double *sinks = divide_workspace(problem);
    cpu_row_sums(problem, sinks, &parallel);
    cpu_clear_unused_rows(problem, &parallel);
    parallel_release(&parallel);
    return FLASH_SUCCESS;
}
