/*
 * Shapes of rows: the generated lists have those of the table, and estimates ask them, so that a
 * row of a new shape counts in the choice. To that end the linker puts __wrap_kernel_table_shapes()
 * in the place of the library's function (CMakeLists.txt).
 */
#include "selection.h"

#include "config/config.h"

kernel_shapes_t __real_kernel_table_shapes(const family_t *family, int32_t op, int32_t dtype);
kernel_shapes_t __wrap_kernel_table_shapes(const family_t *family, int32_t op, int32_t dtype);

/* ---- A row of a new shape ---- */

enum { MOST_SHAPES = 32 };

static const family_t *of_new_row; /* NULL: there is none */
static kernel_shape_t new_shape;
static kernel_shape_t shapes_with_it[MOST_SHAPES];

static int compare(const void *left, const void *right) {
    const kernel_shape_t *a = left, *b = right;
    if (a->d_head != b->d_head)
        return a->d_head - b->d_head;
    return a->d_head_v != b->d_head_v ? a->d_head_v - b->d_head_v : a->B_r - b->B_r;
}

kernel_shapes_t __wrap_kernel_table_shapes(const family_t *family, int32_t op, int32_t dtype) {
    const kernel_shapes_t shapes = __real_kernel_table_shapes(family, op, dtype);
    const size_t count = (size_t)(shapes.end - shapes.begin);
    if (family != of_new_row)
        return shapes;
    assert_true(count + 1 < MOST_SHAPES);
    memcpy(shapes_with_it, shapes.begin, count * sizeof shapes_with_it[0]);
    shapes_with_it[count] = new_shape;
    qsort(shapes_with_it, count + 1, sizeof shapes_with_it[0], compare);
    return (kernel_shapes_t){shapes_with_it, shapes_with_it + count + 1};
}

/* ---- Problems between SM90_DECODE and SM90 ---- */

static problem_t chunk(int32_t seqlen_k, int32_t d_head) {
    problem_t problem;
    memset(&problem, 0, sizeof problem);
    problem.dtype = problem.params.q_dtype = problem.params.v_dtype = problem.params.o_dtype =
        FLASH_DTYPE_BF16;
    problem.features = FLASH_FEATURE_VARLEN;
    flash_params_t *p = &problem.params;
    p->batch = 4;
    p->seqlen_q = 96;
    p->seqlen_k = seqlen_k;
    p->n_heads = 16;
    p->n_heads_kv = p->group = 4;
    p->d_head = p->d_head_v = d_head;
    p->window_left = p->window_right = -1;
    p->q_stride = p->o_stride = (flash_strides_t){96 * 16 * d_head, 16 * d_head, d_head};
    p->k_stride = p->v_stride =
        (flash_strides_t){(int64_t)seqlen_k * 4 * d_head, 4 * d_head, d_head};
    return problem;
}

/* Counts the lengths of keys for which SM90_DECODE is taken. */
static int count_decoded(int32_t d_head) {
    int count = 0;
    for (int32_t seqlen_k = 64; seqlen_k <= 16384; seqlen_k += 64) {
        const problem_t problem = chunk(seqlen_k, d_head);
        const flash_kernel_t *kernel = select_part(&problem, &hopper, FAMILY_NO_PART);
        assert_non_null(kernel);
        count += kernel->config.arch == FLASH_ARCH_SM90_DECODE;
    }
    return count;
}

static int count_decoded_with(const family_t *family, kernel_shape_t shape, int32_t d_head) {
    of_new_row = family;
    new_shape = shape;
    const int count = count_decoded(d_head);
    of_new_row = NULL;
    return count;
}

/* Problems of d_head 80 take rows of SM90 for 96 and of SM90_DECODE for 128. A row with fewer
 * columns is faster, and so is one whose tiles are not mostly padding. */
TEST(a_row_of_a_new_shape_counts_in_the_choice) {
    if (!has_cuda_kernels())
        skip();
    const int decoded = count_decoded(80);
    assert_true(decoded > 0);
    const kernel_shape_t narrower = {.d_head = 80, .d_head_v = 80, .B_r = 128};
    assert_true(count_decoded_with(&family_sm90_decode, narrower, 80) > decoded);
    assert_true(count_decoded_with(&family_sm90, narrower, 80) < decoded);
    const kernel_shape_t larger_tile = {.d_head = 80, .d_head_v = 80, .B_r = 256};
    assert_true(count_decoded_with(&family_sm90, larger_tile, 80) >
                count_decoded_with(&family_sm90, narrower, 80));
}

/* ---- The lists ---- */

static bool has_row(kernel_range_t rows, const kernel_shape_t *shape) {
    for (const flash_kernel_t *row = rows.begin; row < rows.end; row++) {
        const kernel_shape_t of_row = {row->config.d_head, config_d_head_v(&row->config),
                                       row->config.B_r};
        if (compare(&of_row, shape) == 0)
            return true;
    }
    return false;
}

static bool has_shape(kernel_shapes_t shapes, const flash_config_t *config) {
    const kernel_shape_t of_row = {config->d_head, config_d_head_v(config), config->B_r};
    for (const kernel_shape_t *shape = shapes.begin; shape < shapes.end; shape++)
        if (compare(shape, &of_row) == 0)
            return true;
    return false;
}

TEST(every_row_has_its_shape) {
    for (int32_t i = 0; i < kernel_table_count; i++) {
        const flash_kernel_t *row = &kernel_table[i];
        assert_true(has_shape(kernel_table_shapes(row->family, row->config.op, row->config.dtype),
                              &row->config));
    }
}

static void check_shapes(const family_t *family, int32_t op, int32_t dtype) {
    const kernel_shapes_t shapes = kernel_table_shapes(family, op, dtype);
    for (const kernel_shape_t *shape = shapes.begin; shape < shapes.end; shape++) {
        assert_true(shape == shapes.begin || compare(shape - 1, shape) < 0);
        assert_true(has_row(kernel_table_rows(family, op, dtype), shape));
    }
}

TEST(shapes_are_ascending_and_those_of_rows) {
    for (int32_t i = 0; i < family_list_count; i++)
        for (int32_t op = 0; op < CONFIG_N_OPS; op++)
            for (int32_t dtype = 1; dtype <= N_DTYPES; dtype++)
                check_shapes(family_list[i], op, dtype);
}
