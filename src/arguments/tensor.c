/*
 * This file checks a tensor's pointer and strides, and whether tensors overlap.
 */
#include "arguments/tensor.h"

#include "arguments/checks.h"
#include "core/status.h"

#include <inttypes.h>

enum { AXIS_BATCH, AXIS_SEQ, AXIS_HEAD, N_AXES }; /* the axes that have a stride */

typedef struct axis {
    const char *name;
    int64_t stride;
    int64_t size;
} axis_t;

static void get_axes(const flash_tensor_t *tensor, const tensor_shape_t *shape,
                     axis_t axes[N_AXES]) {
    axes[AXIS_BATCH] =
        (axis_t){"stride_batch", shape->batch == 1 ? 0 : tensor->stride_batch, shape->batch};
    axes[AXIS_SEQ] = (axis_t){"stride_seq", tensor->stride_seq, shape->seq};
    axes[AXIS_HEAD] = (axis_t){"stride_head", tensor->stride_head, shape->heads};
}

flash_tensor_t tensor_of_rows(const void *numbers, const flash_strides_t *strides,
                              const tensor_shape_t *of) {
    return (flash_tensor_t){.data = (void *)(uintptr_t)numbers,
                            .stride_batch = strides->batch,
                            .stride_seq = strides->seq,
                            .stride_head =
                                strides->head == FLASH_STRIDE_TOTAL ? of->seq : strides->head};
}

tensor_shape_t tensor_shape_of_rows(const tensor_shape_t *of) {
    tensor_shape_t shape = *of;
    shape.d_head = 1;
    shape.element_size = sizeof(float);
    shape.is_array = true;
    return shape;
}

bool tensor_is_empty(const tensor_shape_t *shape) {
    return shape->batch == 0 || shape->seq == 0 || shape->heads == 0;
}

/* Adds stride * (size - 1) to *sum. Returns false when that overflows. */
static bool add_span(int64_t *sum, int64_t stride, int64_t size) {
    int64_t span;
    return !__builtin_mul_overflow(stride, size - 1, &span) &&
           !__builtin_add_overflow(*sum, span, sum);
}

/* Computes the bytes from the first element to past the last. Returns false when they overflow. */
static bool get_extent(const axis_t axes[N_AXES], const tensor_shape_t *shape,
                       const tensor_repeat_t *repeat, int64_t *bytes) {
    int64_t elements = shape->d_head;
    for (int i = 0; i < N_AXES; i++)
        if (!add_span(&elements, axes[i].stride, axes[i].size))
            return false;
    return add_span(&elements, repeat->stride, repeat->n) &&
           !__builtin_mul_overflow(elements, shape->element_size, bytes);
}

/* Returns what joins the name of a tensor with those of its strides. */
static const char *joint(const tensor_shape_t *shape) {
    return shape->is_array ? "_" : ".";
}

static flash_status_t check_strides(const char *name, const axis_t axes[N_AXES],
                                    const tensor_shape_t *shape) {
    for (int i = 0; i < N_AXES; i++) {
        const bool is_seq = &axes[i] == &axes[AXIS_SEQ];
        const bool is_long = axes[i].size > 1 || (is_seq && shape->longest_seq > 1);
        FLASH_REQUIRE(axes[i].stride >= 0, FLASH_ERROR_INVALID_ARGUMENT,
                      "%s%s%s is %" PRId64 ": negative", name, joint(shape), axes[i].name,
                      axes[i].stride);
        FLASH_REQUIRE(axes[i].stride > 0 || !is_long || !shape->is_output,
                      FLASH_ERROR_INVALID_ARGUMENT,
                      "%s%s%s is 0 along more than one place: no place of an output may repeat",
                      name, joint(shape), axes[i].name);
        FLASH_REQUIRE(axes[i].stride > 0 || !is_long || shape->may_repeat,
                      FLASH_ERROR_INVALID_ARGUMENT,
                      "%s%s%s is 0 along more than one place: FLASH_FLAG_BROADCAST says that this "
                      "is meant",
                      name, joint(shape), axes[i].name);
    }
    return FLASH_SUCCESS;
}

static flash_status_t check_repeat_stride(const tensor_repeat_t *repeat, bool may_repeat) {
    FLASH_REQUIRE(repeat->stride >= 0, FLASH_ERROR_INVALID_ARGUMENT, "%s is %" PRId64 ": negative",
                  repeat->name, repeat->stride);
    FLASH_REQUIRE(repeat->stride > 0 || repeat->n <= 1 || may_repeat, FLASH_ERROR_INVALID_ARGUMENT,
                  "%s is 0 along more than one place: FLASH_FLAG_BROADCAST says that this is meant",
                  repeat->name);
    return FLASH_SUCCESS;
}

static flash_status_t check_reserved(const char *name, const flash_tensor_t *tensor) {
    return argument_check_reserved(name, tensor->reserved32, tensor->reserved,
                                   sizeof tensor->reserved / sizeof tensor->reserved[0]);
}

flash_status_t tensor_check_repeat(const char *name, const flash_tensor_t *tensor,
                                   const tensor_shape_t *shape, const tensor_repeat_t *repeat) {
    axis_t axes[N_AXES];
    int64_t bytes;
    get_axes(tensor, shape, axes);
    FLASH_TRY(check_reserved(name, tensor));
    if (tensor_is_empty(shape) || repeat->n == 0)
        return FLASH_SUCCESS;
    FLASH_REQUIRE(tensor->data != NULL, FLASH_ERROR_INVALID_ARGUMENT, "%s%s is NULL", name,
                  shape->is_array ? "" : ".data");
    FLASH_TRY(check_strides(name, axes, shape));
    FLASH_TRY(check_repeat_stride(repeat, shape->may_repeat));
    FLASH_REQUIRE(get_extent(axes, shape, repeat, &bytes), FLASH_ERROR_INVALID_ARGUMENT,
                  "%s overflows 64-bit offsets: strides %" PRId64 ", %" PRId64 ", %" PRId64
                  " over [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "]",
                  name, axes[0].stride, axes[1].stride, axes[2].stride, shape->batch, shape->seq,
                  shape->heads, shape->d_head);
    return FLASH_SUCCESS;
}

static const tensor_repeat_t ONCE = {.n = 1};

flash_status_t tensor_check(const char *name, const flash_tensor_t *tensor,
                            const tensor_shape_t *shape) {
    return tensor_check_repeat(name, tensor, shape, &ONCE);
}

static void sort_by_stride(axis_t axes[N_AXES]) {
    for (int i = 1; i < N_AXES; i++)
        for (int j = i; j > 0 && axes[j].stride < axes[j - 1].stride; j--) {
            const axis_t axis = axes[j];
            axes[j] = axes[j - 1];
            axes[j - 1] = axis;
        }
}

/* From the smallest stride to the largest, each must step over all elements inside it. */
flash_status_t tensor_check_output(const char *name, const flash_tensor_t *tensor,
                                   const tensor_shape_t *shape) {
    axis_t axes[N_AXES];
    int64_t inside = shape->d_head;
    if (tensor_is_empty(shape))
        return FLASH_SUCCESS;
    get_axes(tensor, shape, axes);
    sort_by_stride(axes);
    for (int i = 0; i < N_AXES; i++) {
        if (axes[i].size == 1)
            continue;
        FLASH_REQUIRE(axes[i].stride >= inside, FLASH_ERROR_INVALID_ARGUMENT,
                      "%s overlaps itself: %s%s%s is %" PRId64 ", and a step spans %" PRId64
                      " elements",
                      name, name, joint(shape), axes[i].name, axes[i].stride, inside);
        inside += axes[i].stride * (axes[i].size - 1);
    }
    return FLASH_SUCCESS;
}

/* ---- Overlap of two tensors ---- */

/* Addresses from the first byte to past the last one. */
typedef struct range {
    uintptr_t begin;
    uintptr_t end;
} range_t;

static range_t range_of(const flash_tensor_t *tensor, const tensor_shape_t *shape) {
    axis_t axes[N_AXES];
    int64_t bytes = 0;
    get_axes(tensor, shape, axes);
    get_extent(axes, shape, &ONCE, &bytes);
    return (range_t){(uintptr_t)tensor->data, (uintptr_t)tensor->data + (uintptr_t)bytes};
}

static range_t first_row(const flash_tensor_t *tensor, const tensor_shape_t *shape) {
    const uintptr_t begin = (uintptr_t)tensor->data;
    return (range_t){begin, begin + (uintptr_t)(shape->d_head * shape->element_size)};
}

/* Says whether a row has a byte of the range. It looks at one row: that which it reaches when it
 * takes, from the largest stride to the smallest, as many steps as do not pass the range's last
 * byte. Where strides do not overlap, no other row is nearer. */
static bool meets(const flash_tensor_t *tensor, const tensor_shape_t *shape, range_t range) {
    axis_t axes[N_AXES];
    const range_t row = first_row(tensor, shape);
    if (range.end <= row.begin)
        return false;
    uint64_t rest = range.end - 1 - row.begin;
    get_axes(tensor, shape, axes);
    sort_by_stride(axes);
    for (int i = N_AXES - 1; i >= 0; i--) {
        const uint64_t last = (uint64_t)axes[i].size - 1;
        if (last == 0 || axes[i].stride == 0)
            continue;
        const uint64_t stride = (uint64_t)(axes[i].stride * shape->element_size);
        const uint64_t steps = rest / stride;
        rest -= stride * (steps < last ? steps : last);
    }
    return range.end - 1 - rest + (row.end - row.begin) > range.begin;
}

static bool first_row_lies_in(const flash_tensor_t *a, const tensor_shape_t *a_shape,
                              const flash_tensor_t *b, const tensor_shape_t *b_shape) {
    const range_t row = first_row(a, a_shape), first_byte = {row.begin, row.begin + 1};
    return meets(b, b_shape, row) || meets(b, b_shape, first_byte);
}

flash_status_t tensor_check_apart(const char *name, const flash_tensor_t *tensor,
                                  const tensor_shape_t *shape, const char *other_name,
                                  const flash_tensor_t *other, const tensor_shape_t *other_shape) {
    if (tensor_is_empty(shape) || tensor_is_empty(other_shape))
        return FLASH_SUCCESS;
    const range_t a = range_of(tensor, shape), b = range_of(other, other_shape);
    if (a.end <= b.begin || b.end <= a.begin)
        return FLASH_SUCCESS;
    FLASH_REQUIRE(!first_row_lies_in(tensor, shape, other, other_shape) &&
                      !first_row_lies_in(other, other_shape, tensor, shape),
                  FLASH_ERROR_INVALID_ARGUMENT, "%s overlaps %s: %s begins at %p, %s at %p", name,
                  other_name, name, tensor->data, other_name, other->data);
    return FLASH_SUCCESS;
}

/* Drops the stride of an axis of length 1, because products with it could overflow. */
static int64_t stride_of(int64_t stride, int64_t length) {
    return length > 1 ? stride : 0;
}

bool tensor_is_same(const flash_tensor_t *a, const tensor_shape_t *a_shape, const flash_tensor_t *b,
                    const tensor_shape_t *b_shape) {
    axis_t axes[N_AXES], others[N_AXES];
    bool same = a->data == b->data && a->dtype == b->dtype;
    get_axes(a, a_shape, axes);
    get_axes(b, b_shape, others);
    for (int i = 0; i < N_AXES; i++)
        same = same && axes[i].size == others[i].size &&
               stride_of(axes[i].stride, axes[i].size) == stride_of(others[i].stride, axes[i].size);
    return same;
}

/* ---- Strides that kernels see ---- */

flash_strides_t tensor_strides(const flash_tensor_t *tensor, bool ragged, const int64_t shape[3]) {
    const flash_strides_t s = {ragged ? 0 : stride_of(tensor->stride_batch, shape[0]),
                               ragged ? tensor->stride_seq
                                      : stride_of(tensor->stride_seq, shape[1]),
                               stride_of(tensor->stride_head, shape[2])};
    return s;
}

flash_strides_t tensor_pool_strides(const flash_tensor_t *tensor, const flash_pages_t *pages,
                                    int64_t n_heads) {
    const int64_t shape[3] = {pages->n_pages, pages->page_size, n_heads};
    flash_strides_t s = tensor_strides(tensor, false, shape);
    if (pages->page_size == 1)
        s.seq = s.batch;
    return s;
}
