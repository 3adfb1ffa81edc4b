/*
 * A kernel may compute a part of a batch, the sequences of some lengths. It then writes their rows
 * as for the whole batch, and no other rows. These tests run on the CPU, whose calls never have
 * parts, but whose kernels find sequences as CUDA kernels do.
 */
#include "support.h"

#include "arguments/data.h"
#include "arguments/forward.h"
#include "config/kernel_table.h"
#include "select/serves.h"

#include <math.h>

enum { BATCH = 7, TOTAL = 42, HEADS = 4, D_HEAD = 8 };

/* The sequences have 1, 0, 5, 9, 4, 3 and 20 queries. */
static const int32_t begins[BATCH + 1] = {0, 1, 1, 6, 15, 19, 22, TOTAL};
static const sizes_t sizes = {BATCH, TOTAL / BATCH, 30, HEADS, 2, D_HEAD};

static bool is_own(int32_t sequence, int32_t least, int32_t most) {
    const int32_t n = begins[sequence + 1] - begins[sequence];
    return n >= least && n <= most;
}

/* Launches the kernel for sequences of least ... most queries. */
static void run_part(const flash_kernel_t *kernel, test_problem_t *p, int32_t least, int32_t most) {
    const device_t device = {.number = FLASH_DEVICE_CPU, .isa = UINT32_MAX};
    flash_forward_args_t own;
    problem_t problem;
    problem_poison(p);
    assert_success(arguments_read(&p->args, &own, &problem));
    assert_success(arguments_check_data(&own, true, &problem));
    problem.params.least_queries = least;
    problem.params.most_queries = most;
    assert_success(select_check(kernel, &problem, &device));
    assert_success(kernel_calls(kernel)->launch(kernel, &problem, &device, NULL));
    problem_check_canaries(p);
}

/* Checks that rows of the part have the bits of the whole batch, and other rows are untouched. */
static void check_part(const test_problem_t *part, const test_problem_t *whole, int32_t least,
                       int32_t most) {
    for (int32_t b = 0; b < BATCH; b++)
        for (int32_t token = begins[b]; token < begins[b + 1]; token++)
            for (int32_t i = 0; i < HEADS * D_HEAD; i++) {
                const size_t at = (size_t)token * HEADS * D_HEAD + (size_t)i;
                const size_t lse_at = (size_t)(i % HEADS) * TOTAL + (size_t)token;
                if (is_own(b, least, most)) {
                    assert_memory_equal(&part->o[at], &whole->o[at], sizeof part->o[at]);
                    assert_memory_equal(&part->lse[lse_at], &whole->lse[lse_at], sizeof(float));
                } else {
                    assert_true(isnan(part->o[at]) && isnan(part->lse[lse_at]));
                }
            }
}

static void check_row(const flash_kernel_t *kernel) {
    static const int32_t borders[] = {0, 1, 3, 4, 5, 19, 20};
    test_problem_t whole, part;
    problem_create(&whole, sizes, 1);
    problem_create(&part, sizes, 1);
    whole.args.cu_seqlens_q = part.args.cu_seqlens_q = begins;
    whole.args.seqlen_q = part.args.seqlen_q = TOTAL;
    whole.args.flags = part.args.flags = FLASH_FLAG_CAUSAL;
    problem_reallocate_workspace(&whole);
    problem_reallocate_workspace(&part);
    run_part(kernel, &whole, 0, 0);
    for (size_t i = 0; i < sizeof borders / sizeof borders[0]; i++) {
        if (borders[i] > 0) {
            run_part(kernel, &part, 0, borders[i]);
            check_part(&part, &whole, 0, borders[i]);
        }
        run_part(kernel, &part, borders[i] + 1, INT32_MAX);
        check_part(&part, &whole, borders[i] + 1, INT32_MAX);
    }
    problem_destroy(&whole);
    problem_destroy(&part);
}

TEST(a_part_is_computed_as_in_the_whole_batch) {
    for (int32_t i = 0; i < kernel_table_count; i++) {
        const flash_config_t *config = &kernel_table[i].config;
        if (is_forward_row(&kernel_table[i]) && config->dtype == FLASH_DTYPE_FP32 &&
            flash_lookup_kernel(config) != NULL)
            check_row(&kernel_table[i]);
    }
}
