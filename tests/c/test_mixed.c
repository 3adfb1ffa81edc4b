/*
 * The rows that compute the parts of a mixed batch are found once for a call. To see that, and to
 * describe a device that need not be there, the linker puts the __wrap_ functions here in the place
 * of the library's own (CMakeLists.txt).
 */
#include "selection.h"

const flash_kernel_t *__real_select_part(const problem_t *problem, const device_t *device,
                                         family_part_t part);
const flash_kernel_t *__wrap_select_part(const problem_t *problem, const device_t *device,
                                         family_part_t part);

static int n_found; /* rows of parts */

const flash_kernel_t *__wrap_select_part(const problem_t *problem, const device_t *device,
                                         family_part_t part) {
    n_found += part != FAMILY_NO_PART;
    return __real_select_part(problem, device, part);
}

flash_status_t __wrap_cuda_device_describe(int32_t number, device_t *device);

flash_status_t __wrap_cuda_device_describe(int32_t number, device_t *device) {
    (void)number;
    *device = hopper;
    return FLASH_SUCCESS;
}

/* A ragged batch with caches, whose lengths no test reads. */
static problem_t ragged_batch(mixed_rows_t *mixed_rows) {
    static const int32_t on_device[4];
    problem_t problem;
    memset(&problem, 0, sizeof problem);
    problem.dtype = problem.params.q_dtype = problem.params.v_dtype = problem.params.o_dtype =
        FLASH_DTYPE_BF16;
    problem.features = FLASH_FEATURE_CAUSAL | FLASH_FEATURE_VARLEN;
    problem.mixed_rows = mixed_rows;
    problem.workspace = (void *)(uintptr_t)4096;
    problem.workspace_size = UINT64_MAX;
    flash_params_t *p = &problem.params;
    p->cu_seqlens_q = p->seqused_k = on_device;
    p->batch = 8;
    p->seqlen_q = 512;
    p->seqlen_k = 8192;
    p->n_heads = 8;
    p->n_heads_kv = 2;
    p->group = 4;
    p->d_head = p->d_head_v = 128;
    p->window_left = -1;
    p->q_stride = p->o_stride = (flash_strides_t){0, 8 * 128, 128};
    p->k_stride = p->v_stride = (flash_strides_t){8192 * 2 * 128, 2 * 128, 128};
    return problem;
}

static const flash_kernel_t *mixed_row(int32_t B_r) {
    const kernel_range_t rows =
        kernel_table_rows(&family_mixed, FLASH_OP_FORWARD, FLASH_DTYPE_BF16);
    for (const flash_kernel_t *row = rows.begin; row < rows.end; row++)
        if (row->config.B_r == B_r && (row->config.features & FLASH_FEATURE_PAGED) == 0)
            return row;
    return NULL;
}

static uint64_t workspace_of(const flash_kernel_t *kernel, const problem_t *problem) {
    uint64_t size = 0;
    assert_success(select_check(kernel, problem, &hopper));
    assert_success(kernel_calls(kernel)->workspace(kernel, problem, &hopper, &size));
    assert_success(kernel_calls(kernel)->check_workspace(kernel, problem, &hopper));
    return size;
}

TEST(a_call_finds_the_rows_of_its_parts_once) {
    mixed_rows_t mixed_rows = {0};
    const problem_t problem = ragged_batch(&mixed_rows);
    const flash_kernel_t *kernel = NULL;
    char reason[SELECT_REASON_SIZE];
    if (mixed_row(16) == NULL)
        skip();
    n_found = 0;
    assert_success(select_kernel(&problem, &hopper, &kernel, reason));
    assert_int_equal(kernel->config.arch, FLASH_ARCH_MIXED);
    workspace_of(kernel, &problem);
    assert_int_equal(n_found, 2);
}

/* Returns the address of an array of the device, which no code here looks at. */
static void *array(int number) {
    return (void *)((uintptr_t)(number + 1) << 40);
}

TEST(a_call_keeps_them_from_its_beginning) {
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    uint64_t size = 0;
    if (mixed_row(16) == NULL)
        skip();
    args.device = FLASH_DEVICE_CUDA;
    args.dtype = FLASH_DTYPE_BF16;
    args.flags = FLASH_FLAG_CAUSAL;
    args.batch = 8;
    args.seqlen_q = 512;
    args.seqlen_k = 8192;
    args.n_heads = 8;
    args.n_heads_kv = 2;
    args.d_head = 128;
    args.q = flash_tensor_bshd(array(0), 512, 8, 128);
    args.k = flash_tensor_bshd(array(1), 8192, 2, 128);
    args.v = flash_tensor_bshd(array(2), 8192, 2, 128);
    args.o = flash_tensor_bshd(array(3), 512, 8, 128);
    args.cu_seqlens_q = array(4);
    args.seqused_k = array(5);
    n_found = 0;
    assert_success(flash_workspace_size(&args, NULL, &size));
    assert_int_equal(n_found, 2);
    n_found = 0;
    assert_success(flash_workspace_size(&args, mixed_row(16), &size));
    assert_int_equal(n_found, 2);
}

/* Rows that were found for one row of MIXED are not those of another one. */
TEST(each_row_has_its_own_parts) {
    mixed_rows_t mixed_rows = {0};
    const problem_t keeping = ragged_batch(&mixed_rows), forgetting = ragged_batch(NULL);
    if (mixed_row(16) == NULL || mixed_row(32) == NULL)
        skip();
    const uint64_t small = workspace_of(mixed_row(16), &forgetting);
    const uint64_t large = workspace_of(mixed_row(32), &forgetting);
    assert_true(small != large);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(workspace_of(mixed_row(16), &keeping), small);
        assert_int_equal(workspace_of(mixed_row(32), &keeping), large);
    }
}
