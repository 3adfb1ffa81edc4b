/*
 * See run.h. A candidate is named SET/CANDIDATE/TYPE; that name, the seed and the number of the
 * draw give its problem.
 */
#define _GNU_SOURCE
#include "run.h"

#include "cases.h"
#include "cpu/convert.h"
#include "flashattn.h"
#include "reference.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { NAME_SIZE = 80, ROUNDS = 15 };

static const double ROUND_SECONDS = 2e-4;

/* ---- Candidates that read where they may not ---- */

static char running[NAME_SIZE + 40]; /* the candidate's name, and why the program ends */

static void on_bad_address(int signal_number) {
    (void)signal_number;
    const ssize_t written = write(STDOUT_FILENO, running, strlen(running));
    _exit(written > 0 ? 1 : 3);
}

void run_watch_addresses(void) {
    const struct sigaction action = {.sa_handler = on_bad_address};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
}

/* ---- Running ---- */

static void reset(const test_case_t *c) {
    for (int i = 0; i < c->n_outputs; i++) {
        guarded_reset(&c->outputs[i].computed, c->outputs[i].initial);
        guarded_reset(&c->outputs[i].expected, c->outputs[i].initial);
    }
}

static void addresses(const test_case_t *c, bool computed, void *outputs[OUTPUTS_MAX]) {
    for (int i = 0; i < c->n_outputs; i++)
        outputs[i] = computed ? c->outputs[i].computed.data : c->outputs[i].expected.data;
}

static void call(routine_t routine, const problem_t *problem, void *const outputs[]) {
    if (routine != NULL)
        routine(problem, outputs);
}

static void run_both(const test_case_t *c, const drawing_t *what) {
    const implementation_t *own = &what->set->candidates[what->candidate];
    void *outputs[OUTPUTS_MAX] = {NULL};
    reset(c);
    addresses(c, true, outputs);
    call(own->prepare, &c->problem, outputs);
    call(own->run, &c->problem, outputs);
    call(own->finish, &c->problem, outputs);
    addresses(c, false, outputs);
    call(reference_of(what->candidate), &c->problem, outputs);
}

/* ---- Comparing ---- */

static bool agree(float computed, float expected, const output_t *output) {
    if (isnan(expected) || isnan(computed))
        return isnan(expected) && isnan(computed);
    if (isinf(expected) || isinf(computed))
        return computed == expected;
    return fabsf(computed - expected) <= output->absolute + output->relative * fabsf(expected);
}

/* Prints the sizes of a problem and how to draw it again. */
static void describe(const problem_t *p, const char *name, const run_options_t *options,
                     int64_t draw) {
    printf("  %lld heads of %lld rows, %lld keys, d %lld, stride %lld, draw %lld; again: "
           "test_kernels --seed %llu --only %s\n",
           (long long)p->n_heads, (long long)p->rows, (long long)p->n_keys, (long long)p->d,
           (long long)p->stride, (long long)draw, (unsigned long long)options->seed, name);
}

static bool output_agrees(const output_t *output, int number, const char *name) {
    if (!guarded_is_intact(&output->computed)) {
        printf("%s: wrote beside output %d\n", name, number);
        return false;
    }
    for (int64_t row = 0; row < output->rows; row++)
        for (int64_t i = 0; i < output->columns; i++) {
            const int64_t at = row * output->stride + i;
            const float computed = element_load(output->computed.data, at, output->dtype);
            const float expected = element_load(output->expected.data, at, output->dtype);
            if (agree(computed, expected, output))
                continue;
            printf("%s: output %d [%lld][%lld] is %.9g, not %.9g\n", name, number, (long long)row,
                   (long long)i, (double)computed, (double)expected);
            return false;
        }
    return true;
}

static bool draw_agrees(const drawing_t *what, const char *name, const run_options_t *options,
                        int64_t draw) {
    random_t random = random_of(options->seed, name, draw);
    test_case_t c = case_draw(what, &random);
    bool agrees = true;
    run_both(&c, what);
    for (int i = 0; i < c.n_outputs && agrees; i++)
        agrees = output_agrees(&c.outputs[i], i, name);
    if (!agrees)
        describe(&c.problem, name, options, draw);
    case_free(&c);
    return agrees;
}

static bool check(const drawing_t *what, const char *name, const run_options_t *options) {
    for (int64_t draw = 0; draw < options->draws; draw++)
        if (!draw_agrees(what, name, options, draw))
            return false;
    return true;
}

/* ---- Timing ---- */

static double seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double time_calls(routine_t routine, const problem_t *p, void *const outputs[], int64_t n) {
    const double begin = seconds();
    for (int64_t i = 0; i < n; i++)
        routine(p, outputs);
    return (seconds() - begin) / (double)n;
}

/* Calls that take about as long as a round. */
static int64_t calls_per_round(routine_t routine, const problem_t *p, void *const outputs[]) {
    int64_t n = 1;
    while (time_calls(routine, p, outputs, n) * (double)n < ROUND_SECONDS)
        n *= 2;
    return n;
}

static int compare_times(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double times[ROUNDS]) {
    qsort(times, ROUNDS, sizeof times[0], compare_times);
    return times[ROUNDS / 2];
}

/* Times reference and candidate in turns, and prints the medians. */
static void bench(const drawing_t *what, const char *name, const run_options_t *options) {
    const routine_t own = what->set->candidates[what->candidate].run;
    const routine_t plain = reference_of(what->candidate);
    random_t random = random_of(options->seed, name, 0);
    test_case_t c = case_draw(what, &random);
    void *computed[OUTPUTS_MAX] = {NULL}, *expected[OUTPUTS_MAX] = {NULL};
    double own_times[ROUNDS], plain_times[ROUNDS];
    reset(&c);
    addresses(&c, true, computed);
    addresses(&c, false, expected);
    call(what->set->candidates[what->candidate].prepare, &c.problem, computed);
    const int64_t n_own = calls_per_round(own, &c.problem, computed);
    const int64_t n_plain = calls_per_round(plain, &c.problem, expected);
    for (int round = 0; round < ROUNDS; round++) {
        plain_times[round] = time_calls(plain, &c.problem, expected, n_plain);
        own_times[round] = time_calls(own, &c.problem, computed, n_own);
    }
    call(what->set->candidates[what->candidate].finish, &c.problem, computed);
    const double own_time = median(own_times), plain_time = median(plain_times);
    printf("%-36s %12.1f ns %12.1f ns %8.1f\n", name, plain_time * 1e9, own_time * 1e9,
           plain_time / own_time);
    case_free(&c);
}

void run_print_heading(void) {
    printf("%-36s %15s %15s %8s\n", "set/candidate/type", "reference", "candidate", "ratio");
}

/* ---- Sets ---- */

static const char *const CANDIDATE_NAMES[N_CANDIDATES] = {
#define CANDIDATE_TEXT(name) #name,
    CANDIDATES(CANDIDATE_TEXT)
#undef CANDIDATE_TEXT
};

static const struct {
    int32_t dtype;
    const char *name;
} DTYPES[] = {{FLASH_DTYPE_FP32, "fp32"},
              {FLASH_DTYPE_FP16, "fp16"},
              {FLASH_DTYPE_BF16, "bf16"},
              {FLASH_DTYPE_E4M3, "e4m3"},
              {FLASH_DTYPE_LATENT_E4M3, "latent_e4m3"},
              {FLASH_DTYPE_Q8_0, "q8_0"},
              {FLASH_DTYPE_Q4_0, "q4_0"}};
_Static_assert(sizeof DTYPES / sizeof DTYPES[0] == N_DTYPES, "a name for each type");

/* Returns 1 where the candidate failed. */
static int run_candidate(const drawing_t *what, const char *name, const run_options_t *options) {
    if (options->only != NULL && strstr(name, options->only) == NULL)
        return 0;
    snprintf(running, sizeof running, "%s: used memory beyond its own\n", name);
    if (!options->bench)
        return check(what, name, options) ? 0 : 1;
    bench(what, name, options);
    return 0;
}

int run_set(const instruction_set_t *set, const run_options_t *options) {
    int failed = 0;
    for (int i = 0; i < N_CANDIDATES * N_DTYPES; i++) {
        const candidate_t candidate = (candidate_t)(i / N_DTYPES);
        const drawing_t what = {set, candidate, DTYPES[i % N_DTYPES].dtype, options->bench,
                                options->rows};
        char name[NAME_SIZE];
        if (set->candidates[candidate].run == NULL || !case_has_dtype(set, candidate, what.dtype))
            continue;
        snprintf(name, sizeof name, "%s/%s/%s", set->name, CANDIDATE_NAMES[candidate],
                 DTYPES[i % N_DTYPES].name);
        failed += run_candidate(&what, name, options);
    }
    return failed;
}
