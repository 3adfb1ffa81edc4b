/*
 * flash_forward_args_t.n_multiprocessors on a CUDA device that need not be there: this program
 * describes one, and records the grids that a call would launch. To that end the linker puts the
 * __wrap_ functions here in the place of the library's own (CMakeLists.txt).
 */
#include "support.h"

#include "core/device.h"
#include "core/status.h"
#include "cuda/runtime/grid.h"
#include "cuda/runtime/measure.h"
#include "cuda/runtime/scope.h"
#include "cuda/tma/tensor_map.h"

enum { ALL = 132, MOST_GRIDS = 8 };

/* ---- The device ---- */

/* Describes an H200 but for the number of its multiprocessors. */
static device_t device = {.number = FLASH_DEVICE_CUDA,
                          .compute_capability = 90,
                          .n_multiprocessors = ALL,
                          .shared_memory_per_block = 227 * 1024};

static int64_t grids[MOST_GRIDS]; /* the blocks of each launch */
static int n_grids;

flash_status_t __wrap_cuda_device_describe(int32_t number, device_t *found);
flash_status_t __wrap_cuda_scope_enter(const device_t *entered, cuda_scope_t *scope);
void __wrap_cuda_scope_leave(const cuda_scope_t *scope);
flash_status_t __wrap_tensor_map_encode(const tma_tensor_t *tensor, int32_t dtype,
                                        tensor_map_box_t box, sm90_tensor_map_t *map);
flash_status_t __wrap_launch_grid(const void *symbol, const cuda_grid_t *grid, const void *params,
                                  flash_stream_t stream);
int __wrap_cudaFuncSetAttribute(const void *symbol, int attribute, int value);
flash_status_t __wrap_measure_cuda(const measurement_t *m, double *times);

flash_status_t __wrap_cuda_device_describe(int32_t number, device_t *found) {
    (void)number;
    *found = device;
    return FLASH_SUCCESS;
}

flash_status_t __wrap_cuda_scope_enter(const device_t *entered, cuda_scope_t *scope) {
    (void)entered;
    (void)scope;
    return FLASH_SUCCESS;
}

void __wrap_cuda_scope_leave(const cuda_scope_t *scope) {
    (void)scope;
}

flash_status_t __wrap_tensor_map_encode(const tma_tensor_t *tensor, int32_t dtype,
                                        tensor_map_box_t box, sm90_tensor_map_t *map) {
    (void)tensor;
    (void)dtype;
    (void)box;
    (void)map;
    return FLASH_SUCCESS;
}

flash_status_t __wrap_launch_grid(const void *symbol, const cuda_grid_t *grid, const void *params,
                                  flash_stream_t stream) {
    (void)symbol;
    (void)params;
    (void)stream;
    assert_true(n_grids < MOST_GRIDS);
    grids[n_grids++] = grid->blocks;
    return FLASH_SUCCESS;
}

int __wrap_cudaFuncSetAttribute(const void *symbol, int attribute, int value) {
    (void)symbol;
    (void)attribute;
    (void)value;
    return 0;
}

static int32_t measured_on; /* a number of multiprocessors */

flash_status_t __wrap_measure_cuda(const measurement_t *m, double *times) {
    measured_on = m->device->n_multiprocessors;
    memset(times, 0, (size_t)measurement_launches(m) * sizeof *times);
    return FLASH_SUCCESS;
}

static bool has_cuda_kernels(void) {
    flash_config_t last = FLASH_CONFIG_INIT;
    assert_success(flash_kernel_config(flash_kernel_at(flash_kernel_count() - 1), &last));
    return last.arch >= FLASH_ARCH_SM80;
}

/* ---- Calls ---- */

/* Returns the address of one of the arrays in memory of the device, which no code here looks at. */
static void *array(int number) {
    return (void *)((uintptr_t)(number + 1) << 40);
}

static flash_forward_args_t make_args(sizes_t s) {
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    args.device = FLASH_DEVICE_CUDA;
    args.dtype = FLASH_DTYPE_BF16;
    args.batch = s.batch;
    args.seqlen_q = s.seqlen_q;
    args.seqlen_k = s.seqlen_k;
    args.n_heads = s.n_heads;
    args.n_heads_kv = s.n_heads_kv;
    args.d_head = s.d_head;
    args.q = flash_tensor_bshd(array(0), s.seqlen_q, s.n_heads, s.d_head);
    args.k = flash_tensor_bshd(array(1), s.seqlen_k, s.n_heads_kv, s.d_head);
    args.v = args.k;
    args.o = flash_tensor_bshd(array(2), s.seqlen_q, s.n_heads, s.d_head);
    args.workspace = array(3);
    args.workspace_size = (uint64_t)1 << 40;
    return args;
}

static flash_forward_args_t prefill(void) {
    return make_args((sizes_t){.batch = 4,
                               .seqlen_q = 2048,
                               .seqlen_k = 2048,
                               .n_heads = 16,
                               .n_heads_kv = 4,
                               .d_head = 128});
}

static flash_forward_args_t decode(void) {
    return make_args((sizes_t){.batch = 2,
                               .seqlen_q = 1,
                               .seqlen_k = 32768,
                               .n_heads = 16,
                               .n_heads_kv = 2,
                               .d_head = 128});
}

/* The device cuts these sequences, whose lengths it alone knows. */
static flash_forward_args_t ragged_decode(void) {
    flash_forward_args_t args = decode();
    args.cu_seqlens_q = args.seqused_k = array(4);
    return args;
}

static flash_forward_args_t invariant_decode(void) {
    flash_forward_args_t args = decode();
    args.flags = FLASH_FLAG_BATCH_INVARIANT;
    return args;
}

static flash_forward_args_t (*const PROBLEMS[])(void) = {prefill, decode, ragged_decode,
                                                         invariant_decode};
enum { N_PROBLEMS = sizeof PROBLEMS / sizeof PROBLEMS[0] };

static const int32_t LIMITS[] = {1, 7, 66, 116, 131};
enum { N_LIMITS = sizeof LIMITS / sizeof LIMITS[0] };

/* Runs a call on a device with that number of multiprocessors, and returns the number of its
 * launches. */
static int launch(flash_forward_args_t args, const flash_kernel_t *kernel, int32_t of_device,
                  int32_t limit) {
    device.n_multiprocessors = of_device;
    args.n_multiprocessors = limit;
    n_grids = 0;
    assert_success(flash_forward(&args, kernel, NULL));
    return n_grids;
}

/* Calls check() with each problem and each kernel that serves it. */
static int for_each_kernel(void (*check)(const flash_forward_args_t *args,
                                         const flash_kernel_t *kernel)) {
    int n = 0;
    for (int i = 0; i < N_PROBLEMS; i++) {
        const flash_forward_args_t args = PROBLEMS[i]();
        for (int32_t row = 0; row < flash_kernel_count(); row++) {
            const flash_kernel_t *kernel = flash_kernel_at(row);
            device.n_multiprocessors = ALL;
            if (flash_query_support(&args, kernel, NULL, 0) == FLASH_SUCCESS) {
                check(&args, kernel);
                n++;
            }
        }
    }
    return n;
}

/* ---- Tests ---- */

static void check_launches(const flash_forward_args_t *args, const flash_kernel_t *kernel) {
    int64_t expected[MOST_GRIDS];
    for (int i = 0; i < N_LIMITS; i++) {
        const int n = launch(*args, kernel, LIMITS[i], 0);
        memcpy(expected, grids, sizeof grids);
        assert_int_equal(launch(*args, kernel, ALL, LIMITS[i]), n);
        assert_memory_equal(grids, expected, (size_t)n * sizeof grids[0]);
    }
}

TEST(a_call_is_launched_as_on_a_smaller_device) {
    if (!has_cuda_kernels())
        skip();
    assert_true(for_each_kernel(check_launches) > 20);
}

static int n_persistent;

static void check_persistent(const flash_forward_args_t *args, const flash_kernel_t *kernel) {
    flash_config_t config = FLASH_CONFIG_INIT;
    assert_success(flash_kernel_config(kernel, &config));
    /* Blocks of SM90_MLA walk parts of the batch for one tile of each sequence: of many tiles there
     * are more. */
    if (!config.persistent || config.arch == FLASH_ARCH_SM90_MLA || args->seqlen_q == 1)
        return;
    for (int i = 0; i < N_LIMITS; i++) {
        assert_int_equal(launch(*args, kernel, ALL, LIMITS[i]), 1);
        assert_int_equal(grids[0], LIMITS[i]);
    }
    n_persistent++;
}

TEST(a_persistent_kernel_has_a_block_for_each) {
    if (!has_cuda_kernels())
        skip();
    n_persistent = 0;
    for_each_kernel(check_persistent);
    assert_true(n_persistent > 0);
}

static void check_workspace(const flash_forward_args_t *args, const flash_kernel_t *kernel) {
    flash_forward_args_t limited = *args;
    uint64_t whole, size;
    assert_success(flash_workspace_size(args, kernel, &whole));
    for (int i = 0; i < N_LIMITS; i++) {
        limited.n_multiprocessors = LIMITS[i];
        assert_success(flash_workspace_size(&limited, kernel, &size));
        assert_true(size <= whole);
    }
}

TEST(the_workspace_for_all_does_for_fewer) {
    if (!has_cuda_kernels())
        skip();
    for_each_kernel(check_workspace);
}

static void check_reason(int32_t limit, const char *words) {
    flash_forward_args_t args = prefill();
    const flash_kernel_t *kernel;
    char reason[512];
    device.n_multiprocessors = ALL;
    args.n_multiprocessors = limit;
    assert_success(flash_select_kernel(&args, &kernel, reason, sizeof reason));
    if (strstr(reason, words) == NULL)
        fail_msg("n_multiprocessors is %d: \"%s\" is not in \"%s\"", limit, words, reason);
}

TEST(selection_counts_those_that_a_call_may_use) {
    if (!has_cuda_kernels())
        skip();
    check_reason(0, "132 multiprocessors");
    check_reason(ALL, "132 multiprocessors");
    check_reason(INT32_MAX, "132 multiprocessors");
    check_reason(116, "116 multiprocessors");
    check_reason(1, "1 multiprocessors");
}

/* A measurement with fewer multiprocessors is a result for that number. */
TEST(results_are_of_those_that_a_call_may_use) {
    const flash_kernel_t *kernel;
    char text[FLASH_TUNING_TEXT_SIZE];
    double seconds;
    if (!has_cuda_kernels())
        skip();
    device.n_multiprocessors = ALL;
    flash_forward_args_t args = prefill();
    args.n_multiprocessors = 116;
    assert_success(flash_select_kernel(&args, &kernel, NULL, 0));
    assert_success(flash_measure(&args, &kernel, 1, 1, NULL, &seconds));
    assert_int_equal(measured_on, 116);
    assert_success(flash_tuning_format(&args, kernel, 1e-6, text, sizeof text));
    assert_non_null(strstr(text, "cc=90 sms=116 "));
}
