/*
 * Merging with arguments made of the fuzzer's bytes: any sizes and strides with a call that must be
 * refused before it reads data, and those that fit into memory with tensors of exactly that extent.
 */
#include "check.h"
#include "input.h"

#include <math.h>
#include <string.h>

enum { MOST_ROWS = 1 << 10, MOST_PARTIALS = 6 };

static flash_combine_args_t take_args(input_t *in) {
    flash_combine_args_t a = FLASH_COMBINE_ARGS_INIT;
    if (take_byte(in) == 255)
        a.struct_size =
            (uint32_t)(take_byte(in) % (sizeof a + 1)); /* at most the size of the struct */
    a.device = take_byte(in) < 250 ? 0 : (int32_t)take_number(in, 5);
    a.o_partial.dtype = (int32_t)take_number(in, 3);
    a.dtype = (int32_t)take_number(in, 3);
    a.n_partials = take_number(in, MOST_PARTIALS);
    a.batch = take_number(in, 3);
    a.seqlen_q = take_number(in, 20);
    a.n_heads = take_number(in, 4);
    a.d_head = take_number(in, 140);
    a.o_partial = take_tensor(in, a.seqlen_q, a.n_heads, a.d_head);
    a.o = take_tensor(in, a.seqlen_q, a.n_heads, a.d_head);
    a.stride_partial = take_byte(in) < 200
                           ? (a.batch & 3) * (a.seqlen_q & 31) * (a.n_heads & 7) * (a.d_head & 255)
                           : take_number(in, 250);
    return a;
}

/* Says whether there is nothing to merge. Sizes that an older struct does not have are zero. */
static bool is_empty(const flash_combine_args_t *a) {
    return a->struct_size < sizeof *a || a->batch == 0 || a->seqlen_q == 0 || a->n_heads == 0;
}

/* ---- Calls that are refused before they read data ---- */

/* All checks may pass, except that of a pointer. */
static void check_refused(const flash_combine_args_t *args) {
    static char somewhere; /* never read */
    flash_combine_args_t a = *args;
    a.n_partials = a.n_partials > 0 ? a.n_partials : 1;
    a.o.data = &somewhere;
    CHECK(flash_combine(&a, NULL) != FLASH_SUCCESS || is_empty(&a)); /* o_partial.data is NULL */
    a.o_partial.data = &somewhere + 1;
    CHECK(flash_combine(&a, NULL) != FLASH_SUCCESS || is_empty(&a)); /* lse_partial is NULL */
}

/* ---- Calls that run ---- */

static bool small(const flash_combine_args_t *a) {
    const int64_t sizes[] = {a->n_partials, a->batch, a->seqlen_q, a->n_heads, a->d_head};
    int64_t rows = 1;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i] < 0 || sizes[i] > MOST_ROWS)
            return false;
        if (i < 4 && sizes[i] > 0)
            rows *= sizes[i];
    }
    return rows <= MOST_ROWS;
}

/* Takes LSE of all kinds of values. */
static float *take_lse(input_t *in, int64_t n) {
    static const float kinds[] = {0,     1.5f,  -3.0f,  -INFINITY, -INFINITY, INFINITY, NAN,
                                  88.0f, 1e30f, -1e30f, 3e38f,     -3e38f,    1e-40f,   -104.0f};
    float *lse = filled(n * (int64_t)sizeof *lse, 0);
    for (int64_t i = 0; i < n; i++)
        lse[i] = kinds[take_byte(in) % (sizeof kinds / sizeof kinds[0])];
    return lse;
}

/* Checks that the merged LSE of a row is at least its largest part, and at most larger by the
 * logarithm of their number. Rows with NaN or infinity among the parts have no such bound. */
static void check_lse(const flash_combine_args_t *a, int64_t n_rows, int64_t row) {
    float largest = -INFINITY;
    for (int64_t i = 0; i < a->n_partials; i++) {
        const float lse = a->lse_partial[i * n_rows + row];
        if (isnan(lse) || lse == INFINITY)
            return;
        largest = lse > largest ? lse : largest;
    }
    const float merged = a->lse[row], tolerance = 1e-6f * (fabsf(largest) + 1);
    if (largest == -INFINITY)
        CHECK(merged == -INFINITY);
    else
        CHECK(merged >= largest - tolerance &&
              merged <= largest + logf((float)a->n_partials) + tolerance);
}

static void run(flash_combine_args_t *a, input_t *in, uint8_t value) {
    const int64_t sizes[3] = {a->batch, a->seqlen_q, a->n_heads};
    const int64_t n_rows = a->batch * a->seqlen_q * a->n_heads;
    int64_t partial, o;
    if (!get_extent(&a->o_partial, sizes, a->d_head, a->stride_partial, a->n_partials, &partial) ||
        !get_extent(&a->o, sizes, a->d_head, 0, 1, &o))
        return;
    float *lse_partial = take_lse(in, a->n_partials * n_rows);
    a->o_partial.data = filled(
        partial *
            ((a->o_partial.dtype ? a->o_partial.dtype : a->dtype) == FLASH_DTYPE_FP32 ? 4 : 2),
        value);
    a->o.data = filled(o * (a->dtype == FLASH_DTYPE_FP32 ? 4 : 2), 0xff);
    a->lse_partial = lse_partial;
    a->lse = filled(n_rows * (int64_t)sizeof *a->lse, 0xff);
    float *sinks = value % 2 ? take_lse(in, a->n_heads) : NULL;
    a->sinks = sinks;
    const flash_status_t status = flash_combine(a, NULL);
    CHECK(status == FLASH_SUCCESS || status == FLASH_ERROR_INVALID_ARGUMENT ||
          status == FLASH_ERROR_UNSUPPORTED /* reserved fields */);
    for (int64_t row = 0; row < n_rows && status == FLASH_SUCCESS; row++)
        check_lse(a, n_rows, row);
    free(a->o_partial.data);
    free(a->o.data);
    free(lse_partial);
    free(sinks);
    free(a->lse);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool initialised;
    input_t in = {data, size};
    if (!initialised)
        CHECK(flash_set_num_threads(2) == FLASH_SUCCESS);
    initialised = true;
    flash_combine_args_t args = take_args(&in);
    const uint8_t value = take_byte(&in);
    check_refused(&args);
    if (args.struct_size == sizeof args && args.device == FLASH_DEVICE_CPU && small(&args))
        run(&args, &in, value);
    return 0;
}
