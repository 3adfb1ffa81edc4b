/*
 * Measured results: their text, their order, and when selection follows them, on described devices.
 * The tests link the library's objects, because these functions are hidden.
 */
#include "support.h"

#include "config/config.h"
#include "config/kernel_table.h"
#include "select/select.h"
#include "select/serves.h"
#include "select/tuning/follow.h"
#include "select/tuning/format.h"
#include "select/tuning/parse.h"

/* Describes an H200. */
static const device_t GPU = {.number = FLASH_DEVICE_CUDA,
                             .compute_capability = 90,
                             .n_multiprocessors = 132,
                             .shared_memory_per_block = 227 * 1024};

enum { LINE = FLASH_TUNING_TEXT_SIZE };

/* ---- Size classes ---- */

TEST(sizes_round_to_the_nearest_power_of_two) {
    static const struct {
        int64_t size;
        int32_t size_class;
    } cases[] = {{0, 0},
                 {1, 0},
                 {2, 1},
                 {3, 2},
                 {5, 2},
                 {6, 3},
                 {724, 9},
                 {725, 10},
                 {1024, 10},
                 {1448, 10},
                 {1449, 11},
                 {INT32_MAX, 31},
                 {(int64_t)1 << 61, 61},
                 {INT64_MAX / 2, 62}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(tuning_size_class(cases[i].size), cases[i].size_class);
}

/* ---- Text ---- */

static const char KEY[] =
    "cc=90 sms=132 dtype=BF16 d_head=128 features=causal q=2000 k=512 heads=1";

/* Reads a text. The caller frees the results. */
static tuning_results_t *parsed(const char *text) {
    tuning_results_t *results = NULL;
    assert_success(tuning_parse(text, false, &results));
    assert_non_null(results);
    return results;
}

static void check_line_round_trip(const tuning_row_t *row) {
    char line[LINE], text[LINE + 32];
    assert_success(tuning_write(row, line, sizeof line));
    snprintf(text, sizeof text, "%s\n%s\n", FLASH_TUNING_HEADER, line);
    tuning_results_t *results = parsed(text);
    assert_int_equal(results->count, 1);
    assert_int_equal(tuning_compare(&results->rows[0], row), 0);
    free(results);
    assert_refused(tuning_write(row, line, strlen(line)), FLASH_ERROR_BUFFER_TOO_SMALL, "buffer");
}

TEST(a_line_reads_as_it_was_written) {
    static const tuning_key_t keys[] = {
        {{80, 108, 0, FLASH_DTYPE_FP16, 1, 0, 0, 0, 0}},
        {{90, 132, 0, FLASH_DTYPE_BF16, 256, 1, 14, 9, 7}},
        {{INT32_MAX, INT32_MAX, 0, FLASH_DTYPE_FP32, INT32_MAX, 15, 31, 31, 62}}};
    for (int32_t i = 0; i < kernel_table_count; i++)
        for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
            tuning_row_t row = {keys[k], k == 2 ? INT64_MAX : 155020, &kernel_table[i]};
            row.key.fields[TUNING_OP] = kernel_table[i].config.op;
            check_line_round_trip(&row);
        }
}

TEST(comments_blanks_and_line_ends_are_free) {
    char text[4 * LINE];
    char config[FLASH_CONFIG_TEXT_SIZE];
    assert_success(flash_config_format(&kernel_table[0].config, config, sizeof config));
    snprintf(text, sizeof text,
             "# a file\n\n  %s \t# the version\r\n# one result\n\t%s ns=7: %s # the end\r\n\n"
             "%s  ns=3 :%s",
             FLASH_TUNING_HEADER, KEY, config, KEY, config);
    tuning_results_t *results = parsed(text);
    assert_int_equal(results->count, 2);
    assert_int_equal(results->rows[0].nanoseconds, 3); /* sorted */
    assert_int_equal(results->rows[1].nanoseconds, 7);
    assert_int_equal(results->rows[0].key.fields[TUNING_LOG2_Q], 11);
    assert_int_equal(results->rows[0].key.fields[TUNING_FEATURES], FLASH_FEATURE_CAUSAL);
    assert_ptr_equal(results->rows[0].kernel, &kernel_table[0]);
    free(results);
}

TEST(absent_configurations_are_passed_over) {
    char text[2 * LINE];
    snprintf(text, sizeof text, "%s\n%s ns=5: REFERENCE (FP32, any, 17, 1)\n", FLASH_TUNING_HEADER,
             KEY);
    tuning_results_t *results = parsed(text);
    assert_int_equal(results->count, 0);
    free(results);
}

/* Checks that the third line is found to be wrong. */
static void check_malformed(const char *line, const char *words) {
    char text[4 * LINE];
    tuning_results_t *results = NULL;
    snprintf(text, sizeof text, "%s\n\n%s\n", FLASH_TUNING_HEADER, line);
    assert_refused(tuning_parse(text, false, &results), FLASH_ERROR_INVALID_ARGUMENT, "line 3: ");
    assert_refused(tuning_parse(text, false, &results), FLASH_ERROR_INVALID_ARGUMENT, words);
    assert_null(results);
}

TEST(malformed_lines_are_refused_with_their_place) {
    static const char *const cases[][2] = {
        {"fast", "expected cc="},
        {"cc=0 sms=1", "expected a number"},
        {"cc=-90 sms=1", "expected a number"},
        {"cc=90 sms=4294967296", "too large"},
        {"cc=90 sms=132 d_head=128", "expected dtype="},
        {"cc=90 sms=132 op=backward dtype=BF16", "expected an operation (forward"},
        {"cc=90 sms=132 op=forward d_head=128", "expected dtype="},
        {"cc=90 sms=132 dtype=BF17", "expected an element type"},
        {"cc=90 sms=132 dtype=BF16x", "expected an element type"},
        {"cc=90 sms=132 dtype=BF16 d_head=128 features=causal+causal", "each once"},
        {"cc=90 sms=132 dtype=BF16 d_head=128 features=", "each once"},
        {"cc=90 sms=132 dtype=BF16 d_head=1 features=none q=0", "expected a number from 1"},
        {"cc=90 sms=132 dtype=BF16 d_head=1 features=none q=4611686018427387905", "too large"},
        {"cc=90 sms=132 dtype=BF16 d_head=1 features=none q=1 k=1 heads=1 ns=1 x", "expected :"},
        {"cc=90 sms=132 dtype=BF16 d_head=1 features=none q=1 k=1 heads=1 ns=1: x",
         "expected the name of a kernel family"},
    };
    char long_line[2 * LINE];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_malformed(cases[i][0], cases[i][1]);
    memset(long_line, 'x', sizeof long_line - 1);
    long_line[sizeof long_line - 1] = '\0';
    check_malformed(long_line, "characters, at most 511");
}

TEST(results_begin_with_the_header) {
    static const char *const texts[] = {"", "\n# nothing\n", "flashattn tuning 2\n", KEY};
    tuning_results_t *results = NULL;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_refused(tuning_parse(texts[i], false, &results), FLASH_ERROR_INVALID_ARGUMENT,
                       FLASH_TUNING_HEADER);
    results = parsed(FLASH_TUNING_HEADER);
    assert_int_equal(results->count, 0);
    free(results);
}

/* ---- The built-in results ---- */

TEST(built_in_results_ascend) {
    for (int32_t i = 0; i < tuning_table_count; i++) {
        const tuning_row_t *row = &tuning_table[i];
        assert_in_range(row->kernel - kernel_table, 0, kernel_table_count - 1);
        assert_int_equal(row->kernel->config.dtype, row->key.fields[TUNING_DTYPE]);
        assert_true(row->nanoseconds > 0);
        if (i > 0)
            assert_true(tuning_compare(row - 1, row) < 0);
    }
}

/* ---- Selection by results ---- */

static problem_t gpu_problem(void) {
    problem_t problem;
    memset(&problem, 0, sizeof problem);
    problem.dtype = problem.params.q_dtype = problem.params.v_dtype = problem.params.o_dtype =
        FLASH_DTYPE_FP16;
    problem.params.batch = 3;
    problem.params.n_heads = problem.params.n_heads_kv = 5;
    problem.params.group = 1;
    problem.params.window_left = problem.params.window_right = -1;
    problem.params.seqlen_q = 300;
    problem.params.seqlen_k = 700;
    problem.params.d_head = problem.params.d_head_v = 64;
    return problem;
}

/* Finds the rows that serve the problem, except the one that is estimated to be the best. */
static int32_t rivals_of(const flash_kernel_t *estimate, const problem_t *problem,
                         const flash_kernel_t **rivals, int32_t most) {
    int32_t count = 0;
    for (int32_t i = 0; i < kernel_table_count && count < most; i++)
        if (&kernel_table[i] != estimate && kernel_table[i].config.arch == estimate->config.arch &&
            select_serves(&kernel_table[i], problem, &GPU))
            rivals[count++] = &kernel_table[i];
    return count;
}

typedef struct fixture {
    problem_t problem;
    const flash_kernel_t *estimate;
    const flash_kernel_t *rivals[2];
    tuning_results_t *results; /* the second rival is the fastest, then the first */
} fixture_t;

static bool create(fixture_t *f) {
    char reason[SELECT_REASON_SIZE];
    f->problem = gpu_problem();
    if (select_kernel(&f->problem, &GPU, &f->estimate, reason) != FLASH_SUCCESS)
        return false; /* a library without CUDA kernels */
    if (rivals_of(f->estimate, &f->problem, f->rivals, 2) < 2)
        return false; /* one of a few rows */
    f->results = calloc(1, sizeof *f->results + 2 * sizeof f->results->rows[0]);
    assert_non_null(f->results);
    f->results->count = 2;
    for (int i = 0; i < 2; i++)
        f->results->rows[i] =
            (tuning_row_t){tuning_key(&f->problem, &GPU), 10 + i, f->rivals[1 - i]};
    return true;
}

/* Returns what selection chooses with these results, and its reason. */
static const flash_kernel_t *followed(const fixture_t *f, const tuning_results_t *results,
                                      char reason[SELECT_REASON_SIZE]) {
    const flash_kernel_t *kernel = f->estimate;
    snprintf(reason, SELECT_REASON_SIZE, "estimated");
    tuning_follow(results, &f->problem, &GPU, &kernel, reason);
    return kernel;
}

TEST(the_fastest_result_is_followed) {
    fixture_t f;
    char reason[SELECT_REASON_SIZE];
    if (!create(&f))
        skip();
    assert_ptr_equal(followed(&f, f.results, reason), f.rivals[1]);
    assert_non_null(strstr(reason, "measured: 10 ns, the fastest of 2 given results"));
    f.problem.params.o_dtype = FLASH_DTYPE_FP32; /* results are of the type of K and V */
    assert_ptr_equal(followed(&f, f.results, reason), f.rivals[1]);
    f.problem.params.seqlen_q = 299; /* of the same size class */
    assert_ptr_equal(followed(&f, f.results, reason), f.rivals[1]);
    f.problem.params.seqlen_q = 3000;
    assert_ptr_equal(followed(&f, f.results, reason), f.estimate);
    assert_string_equal(reason, "estimated");
    free(f.results);
}

TEST(a_window_counts_as_its_keys) {
    problem_t problem = gpu_problem();
    assert_int_equal(tuning_key(&problem, &GPU).fields[TUNING_LOG2_K], 9);
    assert_int_equal(tuning_key(&problem, &GPU).fields[TUNING_LOG2_HEADS], 4);
    problem.params.window_right = 0;
    assert_int_equal(tuning_key(&problem, &GPU).fields[TUNING_LOG2_K], 9);
    problem.params.window_left = 31;
    assert_int_equal(tuning_key(&problem, &GPU).fields[TUNING_LOG2_K], 5);
    problem.params.window_left = INT32_MAX;
    assert_int_equal(tuning_key(&problem, &GPU).fields[TUNING_LOG2_K], 9);
}

TEST(results_that_do_not_serve_are_passed_over) {
    fixture_t f;
    char reason[SELECT_REASON_SIZE];
    if (!create(&f))
        skip();
    for (int32_t i = 0; i < kernel_table_count; i++)
        if (kernel_table[i].config.dtype == FLASH_DTYPE_BF16 &&
            !kernel_table[i].family->facts->on_cpu)
            f.results->rows[0].kernel = &kernel_table[i];
    assert_ptr_equal(followed(&f, f.results, reason), f.rivals[0]);
    free(f.results);
}

TEST(batch_invariant_problems_follow_nothing) {
    fixture_t f;
    char reason[SELECT_REASON_SIZE];
    if (!create(&f))
        skip();
    f.problem.batch_invariant = true;
    assert_ptr_equal(followed(&f, f.results, reason), f.estimate);
    free(f.results);
}

/* A family without a result was not measured, so its row, which is estimated to be better, stays.
 * The first row of the table stands for it. */
TEST(a_family_that_was_not_measured_keeps_its_row) {
    fixture_t f;
    char reason[SELECT_REASON_SIZE];
    if (!create(&f))
        skip();
    f.estimate = &kernel_table[0];
    assert_ptr_equal(followed(&f, f.results, reason), f.estimate);
    f.results->rows[1].kernel = &kernel_table[0];
    assert_ptr_equal(followed(&f, f.results, reason), f.rivals[1]);
    free(f.results);
}

/* Makes one query with `group` query heads per K/V head, which decode kernels serve. */
static problem_t decode_problem(int32_t group) {
    problem_t problem = gpu_problem();
    flash_params_t *p = &problem.params;
    p->batch = 64 / group;
    p->n_heads_kv = 1;
    p->n_heads = p->group = group;
    p->seqlen_q = 1;
    p->q_stride = p->o_stride = (flash_strides_t){64 * group, 64 * group, 64};
    p->k_stride = p->v_stride = (flash_strides_t){700 * 64, 64, 64};
    return problem;
}

/* The key has only the product of batch and heads. */
TEST(results_of_fewer_heads_do_not_read_keys_twice) {
    const problem_t few = decode_problem(4), many = decode_problem(16);
    const flash_kernel_t *of_few = NULL, *of_many = NULL, *kernel;
    char reason[SELECT_REASON_SIZE];
    if (select_kernel(&few, &GPU, &of_few, reason) != FLASH_SUCCESS ||
        select_kernel(&many, &GPU, &of_many, reason) != FLASH_SUCCESS || of_few == of_many)
        skip();
    const tuning_key_t key = tuning_key(&few, &GPU);
    const tuning_key_t key_of_many = tuning_key(&many, &GPU);
    assert_memory_equal(&key, &key_of_many, sizeof key);
    tuning_results_t *results = calloc(1, sizeof *results + sizeof results->rows[0]);
    assert_non_null(results);
    results->count = 1;
    results->rows[0] = (tuning_row_t){key, 10, of_few};
    kernel = of_many;
    tuning_follow(results, &many, &GPU, &kernel, reason);
    assert_ptr_equal(kernel, of_many);
    kernel = of_few;
    reason[0] = '\0';
    tuning_follow(results, &few, &GPU, &kernel, reason);
    assert_non_null(strstr(reason, "measured: 10 ns"));
    results->rows[0].kernel = of_many; /* which serves few as well as it does many */
    tuning_follow(results, &few, &GPU, &kernel, reason);
    assert_ptr_equal(kernel, of_many);
    free(results);
}

/* Makes a problem that a built-in result is about. */
static problem_t problem_of(const tuning_row_t *row) {
    const int32_t *key = row->key.fields;
    problem_t problem = gpu_problem();
    problem.dtype = problem.params.q_dtype = problem.params.v_dtype = problem.params.o_dtype =
        key[TUNING_DTYPE];
    problem.features = key[TUNING_FEATURES];
    problem.params.d_head = problem.params.d_head_v = key[TUNING_D_HEAD];
    problem.params.seqlen_q = 1 << key[TUNING_LOG2_Q];
    problem.params.seqlen_k = 1 << key[TUNING_LOG2_K];
    problem.params.batch = 1;
    problem.params.n_heads = problem.params.n_heads_kv = 1 << key[TUNING_LOG2_HEADS];
    if (problem.features & FLASH_FEATURE_CAUSAL)
        problem.params.window_right = 0;
    return problem;
}

TEST(own_results_come_before_built_in_ones) {
    char reason[SELECT_REASON_SIZE] = "";
    for (int32_t i = 0; i < tuning_table_count; i++) {
        const tuning_row_t *row = &tuning_table[i];
        const flash_kernel_t *kernel = row->kernel;
        const problem_t problem = problem_of(row);
        tuning_results_t none = {.alone = true};
        tuning_follow(NULL, &problem, &GPU, &kernel, reason);
        assert_non_null(strstr(reason, "built-in results"));
        reason[0] = '\0';
        kernel = row->kernel;
        tuning_follow(&none, &problem, &GPU, &kernel, reason);
        assert_string_equal(reason, "");
        assert_ptr_equal(kernel, row->kernel);
    }
}
