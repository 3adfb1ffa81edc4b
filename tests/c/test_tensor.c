/*
 * The overlap of two tensors of random layouts is compared with a map of every byte.
 */
#include "support.h"

#include "arguments/tensor.h"

/* The largest layout begins at byte 1200 and has 1210 elements of 4 bytes. */
enum { LAYOUTS = 20000, BYTES = 8192, AXES = 3 };

static uint32_t random_state = 1;

/* Returns a number of 0 ... most. */
static int64_t random_number(int64_t most) {
    random_state = random_state * 1664525u + 1013904223u;
    return (int64_t)(random_state >> 8) % (most + 1);
}

/* ---- Layouts ---- */

static uint8_t memory[BYTES];

typedef struct layout {
    flash_tensor_t tensor;
    tensor_shape_t shape;
} layout_t;

/* Sets strides over what lies inside, plus up to `gap` elements, in any order of the axes. */
static void set_nested_strides(layout_t *layout, int64_t gap) {
    int64_t *const strides[AXES] = {&layout->tensor.stride_batch, &layout->tensor.stride_seq,
                                    &layout->tensor.stride_head};
    const int64_t sizes[AXES] = {layout->shape.batch, layout->shape.seq, layout->shape.heads};
    const int64_t first = random_number(AXES - 1), step = 1 + random_number(1);
    int64_t inside = layout->shape.d_head;
    for (int64_t i = 0; i < AXES; i++) {
        const int64_t axis = (first + i * step) % AXES;
        *strides[axis] = inside + random_number(gap);
        inside += *strides[axis] * (sizes[axis] - 1);
    }
}

static void set_any_strides(layout_t *layout) {
    layout->tensor.stride_batch = random_number(40);
    layout->tensor.stride_seq = random_number(40);
    layout->tensor.stride_head = random_number(40);
}

static layout_t random_layout(int64_t d_head, int64_t element_size) {
    layout_t layout = {.tensor = FLASH_TENSOR_INIT};
    layout.shape = (tensor_shape_t){.batch = 1 + random_number(3),
                                    .seq = 1 + random_number(3),
                                    .heads = 1 + random_number(3),
                                    .d_head = d_head,
                                    .element_size = element_size};
    layout.tensor.data = memory + random_number(1200);
    return layout;
}

/* ---- The map ---- */

/* Marks the bytes of the first n rows by 1. */
static void mark(const layout_t *layout, int64_t n, uint8_t map[BYTES]) {
    const int64_t row = layout->shape.d_head * layout->shape.element_size;
    const int64_t begin = (uint8_t *)layout->tensor.data - memory;
    int64_t marked = 0;
    memset(map, 0, BYTES);
    for (int64_t b = 0; b < layout->shape.batch; b++)
        for (int64_t s = 0; s < layout->shape.seq; s++)
            for (int64_t h = 0; h < layout->shape.heads && marked < n; h++, marked++)
                memset(map + begin +
                           layout->shape.element_size *
                               (b * layout->tensor.stride_batch + s * layout->tensor.stride_seq +
                                h * layout->tensor.stride_head),
                       1, (size_t)row);
}

/* Says whether the first n rows of one tensor and the first m of the other share a byte. */
static bool share(const layout_t *a, int64_t n, const layout_t *b, int64_t m) {
    static uint8_t map_a[BYTES], map_b[BYTES];
    mark(a, n, map_a);
    mark(b, m, map_b);
    for (int i = 0; i < BYTES; i++)
        if (map_a[i] & map_b[i])
            return true;
    return false;
}

static bool share_any(const layout_t *a, const layout_t *b) {
    return share(a, INT64_MAX, b, INT64_MAX);
}

static bool is_refused(const layout_t *a, const layout_t *b) {
    return tensor_check_apart("a", &a->tensor, &a->shape, "b", &b->tensor, &b->shape) !=
           FLASH_SUCCESS;
}

/* ---- Tests ---- */

/* Checks that a test has seen both outcomes; otherwise it shows nothing. */
static void check_both(const int counts[2]) {
    assert_true(counts[false] > LAYOUTS / 100 && counts[true] > LAYOUTS / 100);
}

TEST(contiguous_tensors_are_refused_where_they_overlap) {
    int counts[2] = {0, 0};
    for (int i = 0; i < LAYOUTS; i++) {
        layout_t a = random_layout(1 + random_number(4), 2 + 2 * random_number(1));
        layout_t b = random_layout(1 + random_number(4), 2 + 2 * random_number(1));
        set_nested_strides(&a, 0);
        set_nested_strides(&b, 0);
        const bool refused = is_refused(&a, &b);
        assert_int_equal(refused, share_any(&a, &b));
        counts[refused]++;
    }
    check_both(counts);
}

TEST(first_rows_in_the_other_tensor_are_refused) {
    int counts[2] = {0, 0};
    for (int i = 0; i < LAYOUTS; i++) {
        layout_t a = random_layout(1 + random_number(12), 2 + 2 * random_number(1));
        layout_t b = random_layout(1 + random_number(4), 2 + 2 * random_number(1));
        set_nested_strides(&a, 6);
        set_nested_strides(&b, 6);
        const bool refused = is_refused(&a, &b);
        assert_int_equal(refused, share(&a, 1, &b, INT64_MAX) || share(&a, INT64_MAX, &b, 1));
        counts[refused]++;
    }
    check_both(counts);
}

TEST(what_shares_no_byte_is_never_refused) {
    int counts[2] = {0, 0};
    for (int i = 0; i < LAYOUTS; i++) {
        layout_t a = random_layout(1 + random_number(4), 2 + 2 * random_number(1));
        layout_t b = random_layout(1 + random_number(4), 2 + 2 * random_number(1));
        set_any_strides(&a);
        set_any_strides(&b);
        const bool refused = is_refused(&a, &b);
        assert_true(!refused || share_any(&a, &b));
        counts[refused]++;
    }
    check_both(counts);
}

TEST(empty_tensors_are_nowhere) {
    layout_t a = random_layout(4, 4);
    set_nested_strides(&a, 0);
    layout_t b = a;
    assert_true(is_refused(&a, &b));
    b.shape.seq = 0;
    assert_false(is_refused(&a, &b));
    assert_false(is_refused(&b, &a));
}
