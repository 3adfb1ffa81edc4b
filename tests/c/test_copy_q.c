/*
 * On a CUDA device a Q of fp32 becomes a copy of 16 bits: what arguments make of such a call. The
 * copy itself takes a GPU (tests/gpu/test_gpu_fp32_q.py).
 */
#include "support.h"

#include "arguments/forward.h"

static problem_t read_problem(const flash_forward_args_t *args) {
    flash_forward_args_t checked;
    problem_t problem;
    assert_success(arguments_read(args, &checked, &problem));
    return problem;
}

/* Kernels are given a copy of the type of K, in rows of whole vectors of 8. */
TEST(a_cuda_device_copies_a_q_of_fp32) {
    test_problem_t p;
    problem_create(&p, SMALL, 1);
    p.args.device = FLASH_DEVICE_CUDA;
    p.args.k.dtype = p.args.v.dtype = FLASH_DTYPE_BF16;
    p.args.d_head = 13;
    const problem_t wide = read_problem(&p.args);
    const int64_t row = 16, token = row * p.args.n_heads;
    assert_true(wide.wide_q.is_copied);
    assert_ptr_equal(wide.wide_q.data, p.args.q.data);
    assert_int_equal(wide.wide_q.stride.head, p.args.q.stride_head);
    assert_null(wide.params.q);
    assert_int_equal(wide.params.q_dtype, FLASH_DTYPE_BF16);
    assert_int_equal(wide.params.q_stride.head, row);
    assert_int_equal(wide.params.q_stride.seq, token);
    assert_int_equal(wide.params.q_stride.batch, token * p.args.seqlen_q);
    problem_destroy(&p);
}

/* The CPU has kernels for it, and there is no copy for other types. */
TEST(other_calls_read_their_own_q) {
    test_problem_t p;
    problem_create(&p, SMALL, 1);
    p.args.k.dtype = p.args.v.dtype = FLASH_DTYPE_BF16;
    assert_false(read_problem(&p.args).wide_q.is_copied);
    p.args.device = FLASH_DEVICE_CUDA;
    p.args.q.dtype = FLASH_DTYPE_BF16;
    assert_false(read_problem(&p.args).wide_q.is_copied);
    p.args.q.dtype = FLASH_DTYPE_FP32;
    p.args.k.dtype = p.args.v.dtype = FLASH_DTYPE_E4M3;
    assert_false(read_problem(&p.args).wide_q.is_copied);
    assert_int_equal(read_problem(&p.args).params.q_dtype, FLASH_DTYPE_FP32);
    problem_destroy(&p);
}
