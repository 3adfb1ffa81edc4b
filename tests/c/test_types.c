/*
 * Tensors of different element types: which kernels serve them, and where the tensors end.
 */
#include "support.h"

static const int32_t DTYPES[] = {FLASH_DTYPE_FP16, FLASH_DTYPE_BF16, FLASH_DTYPE_FP32,
                                 FLASH_DTYPE_E4M3};
enum {
    N_DTYPES = sizeof DTYPES / sizeof DTYPES[0],
    N_COMBINATIONS = N_DTYPES * N_DTYPES * N_DTYPES
};

/* Sets combination number i of the types of Q, of K and V, and of O. */
static void set_types(flash_forward_args_t *args, int i) {
    args->q.dtype = DTYPES[i % N_DTYPES];
    args->k.dtype = args->v.dtype = DTYPES[i / N_DTYPES % N_DTYPES];
    args->o.dtype = DTYPES[i / N_DTYPES / N_DTYPES];
}

static bool goes_together(const flash_forward_args_t *args) {
    const int32_t kv = args->k.dtype, q = args->q.dtype, o = args->o.dtype;
    if (kv == FLASH_DTYPE_E4M3)
        return o != FLASH_DTYPE_E4M3;
    return (q == kv || q == FLASH_DTYPE_FP32) && (o == kv || o == FLASH_DTYPE_FP32);
}

/* ---- Kernels for types ---- */

/* The library's choice serves types that go together, and no others are accepted. */
TEST(a_kernel_is_found_for_types_that_go_together) {
    test_problem_t p;
    for (int i = 0; i < N_COMBINATIONS; i++) {
        problem_create(&p, SMALL, 1);
        set_types(&p.args, i);
        const bool served = goes_together(&p.args);
        const flash_status_t expected = served ? FLASH_SUCCESS : FLASH_ERROR_UNSUPPORTED;
        assert_int_equal(flash_query_support(&p.args, NULL, NULL, 0), expected);
        if (served)
            problem_reallocate_workspace(&p);
        assert_int_equal(flash_forward(&p.args, NULL, NULL), expected);
        assert_true(served != problem_is_untouched(&p));
        problem_check_canaries(&p);
        problem_destroy(&p);
    }
}

/* A kernel does what flash_query_support() says. */
TEST(a_kernel_serves_what_it_says) {
    test_problem_t p;
    problem_create(&p, SMALL, 1);
    free(p.args.workspace);
    p.args.workspace_size = 1 << 24;
    p.args.workspace = malloc((size_t)p.args.workspace_size);
    assert_non_null(p.args.workspace);
    for (int32_t row = 0; row < flash_kernel_count(); row++)
        for (int i = 0; i < N_COMBINATIONS; i++) {
            const flash_kernel_t *kernel = flash_kernel_at(row);
            uint64_t size = 0;
            set_types(&p.args, i);
            problem_poison(&p);
            const flash_status_t status = flash_query_support(&p.args, kernel, NULL, 0);
            assert_true(status == FLASH_SUCCESS || status == FLASH_ERROR_UNSUPPORTED);
            assert_true(status != FLASH_SUCCESS || goes_together(&p.args));
            assert_int_equal(flash_workspace_size(&p.args, kernel, &size), status);
            assert_int_equal(flash_forward(&p.args, kernel, NULL), status);
            assert_true((status == FLASH_SUCCESS) != problem_is_untouched(&p));
            problem_check_canaries(&p);
        }
    problem_destroy(&p);
}

TEST(the_type_of_a_call_is_that_of_tensors_that_name_none) {
    test_problem_t p;
    const flash_kernel_t *kernel;
    flash_config_t config = FLASH_CONFIG_INIT;
    problem_create(&p, SMALL, 1);
    p.args.k.dtype = p.args.v.dtype = FLASH_DTYPE_BF16; /* Q and O are of fp32 */
    assert_success(flash_select_kernel(&p.args, &kernel, NULL, 0));
    assert_success(flash_kernel_config(kernel, &config));
    assert_int_equal(config.dtype, FLASH_DTYPE_BF16);
    problem_reallocate_workspace(&p);
    problem_run(&p);
    assert_false(problem_is_untouched(&p));
    problem_destroy(&p);
}

TEST(a_reason_names_types_that_differ) {
    test_problem_t p;
    const flash_kernel_t *kernel;
    char reason[256];
    problem_create(&p, SMALL, 1);
    p.args.dtype = FLASH_DTYPE_FP16;
    p.args.q.dtype = FLASH_DTYPE_FP32;
    assert_success(flash_select_kernel(&p.args, &kernel, reason, sizeof reason));
    assert_non_null(strstr(reason, "has for FP16 (Q FP32, O FP16)"));
    p.args.q.dtype = FLASH_DTYPE_FP16;
    assert_success(flash_select_kernel(&p.args, &kernel, reason, sizeof reason));
    assert_null(strstr(reason, "(Q "));
    problem_destroy(&p);
}

/* ---- Extents of tensors ---- */

/* Makes one query of 8 elements, with Q at the beginning of `memory`, and O some bytes after it. */
static flash_forward_args_t neighbours(unsigned char *memory, int64_t o_at) {
    static float key[8];
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    args.dtype = FLASH_DTYPE_FP32;
    args.batch = args.seqlen_q = args.seqlen_k = args.n_heads = args.n_heads_kv = 1;
    args.d_head = 8;
    args.q = flash_tensor_bshd(memory, 1, 1, 8);
    args.k = args.v = flash_tensor_bshd(key, 1, 1, 8);
    args.o = flash_tensor_bshd(memory + o_at, 1, 1, 8);
    return args;
}

static flash_status_t run(flash_forward_args_t *args) {
    static unsigned char workspace[1 << 20];
    args->workspace = workspace;
    args->workspace_size = sizeof workspace;
    return flash_forward(args, NULL, NULL);
}

TEST(a_tensor_ends_where_its_own_elements_do) {
    unsigned char memory[128] = {0};
    flash_forward_args_t args = neighbours(memory, 16); /* Q: 16 bytes; O: 32 */
    args.q.dtype = args.k.dtype = args.v.dtype = FLASH_DTYPE_BF16;
    assert_success(run(&args));
    args.o.data = memory + 15;
    assert_refused(run(&args), FLASH_ERROR_INVALID_ARGUMENT, "o overlaps q");

    args = neighbours(memory, 32); /* Q: 32 bytes; O: 16 */
    args.k.dtype = args.v.dtype = args.o.dtype = FLASH_DTYPE_FP16;
    assert_success(run(&args));
    args.o.data = memory + 31;
    assert_refused(run(&args), FLASH_ERROR_INVALID_ARGUMENT, "o overlaps q");
    args.o.data = memory;
    args.q.data = memory + 16;
    assert_success(run(&args));
    args.o.dtype = FLASH_DTYPE_FP32;
    assert_refused(run(&args), FLASH_ERROR_INVALID_ARGUMENT, "o overlaps q");
}

/* An offset of 2^61 elements is 2^63 bytes of fp32, one too many, and half as many of 16 bits. */
TEST(offsets_are_counted_in_bytes_of_each_type) {
    unsigned char memory[128] = {0};
    flash_forward_args_t args = neighbours(memory, 64);
    args.seqlen_q = 2;
    args.q.stride_seq = (int64_t)1 << 61;
    args.k.dtype = args.v.dtype = FLASH_DTYPE_BF16;
    assert_refused(run(&args), FLASH_ERROR_INVALID_ARGUMENT, "q overflows 64-bit offsets");
    args.q.dtype = FLASH_DTYPE_BF16;
    args.o.data = args.k.data; /* what is checked next */
    assert_refused(run(&args), FLASH_ERROR_INVALID_ARGUMENT, "o overlaps k");
}
