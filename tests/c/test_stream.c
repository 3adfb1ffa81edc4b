/*
 * The CPU has no streams: each call that takes one refuses it there, before it writes anything.
 */
#include "support.h"

/* A stream that is none. The calls do not look at what it points to. */
static int nothing;
static const flash_stream_t STREAM = &nothing;

static const char WORDS[] = "device is the CPU, which has no streams";

TEST(forward_takes_none) {
    test_problem_t p;
    problem_create(&p, SMALL, 1);
    assert_refused(flash_forward(&p.args, NULL, STREAM), FLASH_ERROR_INVALID_ARGUMENT, WORDS);
    assert_true(problem_is_untouched(&p));
    problem_run(&p);
    p.args.batch = 0; /* a call without output takes none either */
    assert_refused(flash_forward(&p.args, NULL, STREAM), FLASH_ERROR_INVALID_ARGUMENT, WORDS);
    problem_destroy(&p);
}

TEST(measure_takes_none) {
    const flash_kernel_t *kernel = NULL;
    double seconds = -1;
    test_problem_t p;
    problem_create(&p, SMALL, 2);
    assert_success(flash_select_kernel(&p.args, &kernel, NULL, 0));
    assert_refused(flash_measure(&p.args, &kernel, 1, 1, STREAM, &seconds),
                   FLASH_ERROR_INVALID_ARGUMENT, WORDS);
    assert_true(problem_is_untouched(&p) && seconds == -1);
    problem_destroy(&p);
}

/* Makes a tensor of one element. */
static flash_tensor_t one(float *element) {
    return flash_tensor_bshd(element, 1, 1, 1);
}

TEST(combine_takes_none) {
    float o_partial = 2, lse_partial = 0, o = -1;
    flash_combine_args_t args = FLASH_COMBINE_ARGS_INIT;
    args.dtype = FLASH_DTYPE_FP32;
    args.o_partial = one(&o_partial);
    args.lse_partial = &lse_partial;
    args.o = one(&o);
    args.n_partials = args.batch = args.seqlen_q = args.n_heads = args.d_head = 1;
    args.stride_partial = 1;
    assert_refused(flash_combine(&args, STREAM), FLASH_ERROR_INVALID_ARGUMENT, WORDS);
    assert_true(o == -1);
    assert_success(flash_combine(&args, NULL));
    assert_true(o == 2);
}

TEST(append_takes_none) {
    float k_new = 2, v_new = 3, k = -1, v = -1;
    const int32_t used = 0;
    flash_kv_append_args_t args = FLASH_KV_APPEND_ARGS_INIT;
    args.dtype = FLASH_DTYPE_FP32;
    args.k_new = one(&k_new);
    args.v_new = one(&v_new);
    args.k = one(&k);
    args.v = one(&v);
    args.seqused_k = &used;
    args.batch = args.seqlen_new = args.seqlen_k = args.n_heads_kv = args.d_head = 1;
    assert_refused(flash_kv_append(&args, STREAM), FLASH_ERROR_INVALID_ARGUMENT, WORDS);
    assert_true(k == -1 && v == -1);
    assert_success(flash_kv_append(&args, NULL));
    assert_true(k == 2 && v == 3);
}
