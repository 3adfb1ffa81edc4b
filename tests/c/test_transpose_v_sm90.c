/*
 * What a call launches that multiplies e4m3, on a CUDA device that need not be there: this program
 * describes one, and records the launches and the tensor maps. To that end the linker puts the
 * __wrap_ functions here in the place of the library's own (CMakeLists.txt).
 */
#include "selection.h"

#include "core/device.h"
#include "core/status.h"
#include "cuda/runtime/grid.h"
#include "cuda/runtime/scope.h"
#include "cuda/tma/tensor_map.h"

enum { MOST_GRIDS = 8 };

/* ---- The device ---- */

/* Describes an H200 but for the number of its multiprocessors. */
static device_t device = {.number = FLASH_DEVICE_CUDA,
                          .compute_capability = 90,
                          .n_multiprocessors = 132,
                          .shared_memory_per_block = 227 * 1024};

static cuda_grid_t grids[MOST_GRIDS]; /* of each launch */
static int n_grids;
static tma_tensor_t encoded[MOST_GRIDS]; /* q, k, v and o */
static tensor_map_box_t boxes[MOST_GRIDS];
static int n_encoded;

flash_status_t __wrap_cuda_device_describe(int32_t number, device_t *found);
flash_status_t __wrap_cuda_scope_enter(const device_t *entered, cuda_scope_t *scope);
void __wrap_cuda_scope_leave(const cuda_scope_t *scope);
flash_status_t __wrap_tensor_map_encode(const tma_tensor_t *tensor, int32_t dtype,
                                        tensor_map_box_t box, sm90_tensor_map_t *map);
flash_status_t __wrap_launch_grid(const void *symbol, const cuda_grid_t *grid, const void *params,
                                  flash_stream_t stream);
int __wrap_cudaFuncSetAttribute(const void *symbol, int attribute, int value);

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
    (void)dtype;
    (void)map;
    assert_true(n_encoded < MOST_GRIDS);
    encoded[n_encoded] = *tensor;
    boxes[n_encoded++] = box;
    return FLASH_SUCCESS;
}

flash_status_t __wrap_launch_grid(const void *symbol, const cuda_grid_t *grid, const void *params,
                                  flash_stream_t stream) {
    (void)symbol;
    (void)params;
    (void)stream;
    assert_true(n_grids < MOST_GRIDS);
    grids[n_grids++] = *grid;
    return FLASH_SUCCESS;
}

int __wrap_cudaFuncSetAttribute(const void *symbol, int attribute, int value) {
    (void)symbol;
    (void)attribute;
    (void)value;
    return 0;
}

/* ---- Calls ---- */

/* Returns the address of one of the arrays in memory of the device, which no code here looks at. */
static void *array(int number) {
    return (void *)((uintptr_t)(number + 1) << 40);
}

static flash_forward_args_t make_args(int32_t d_head, int32_t seqlen_k) {
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    args.device = FLASH_DEVICE_CUDA;
    args.dtype = FLASH_DTYPE_E4M3;
    args.batch = 3;
    args.seqlen_q = 500;
    args.seqlen_k = seqlen_k;
    args.n_heads = 8;
    args.n_heads_kv = 2;
    args.d_head = d_head;
    args.q = flash_tensor_bshd(array(0), args.seqlen_q, args.n_heads, d_head);
    args.k = flash_tensor_bshd(array(1), seqlen_k, args.n_heads_kv, d_head);
    args.v = flash_tensor_bshd(array(2), seqlen_k, args.n_heads_kv, d_head);
    args.o = flash_tensor_bshd(array(3), args.seqlen_q, args.n_heads, d_head);
    args.o.dtype = FLASH_DTYPE_BF16;
    args.workspace = (char *)array(4) + 5;
    n_grids = n_encoded = 0;
    return args;
}

/* Returns the largest d_head of SM90 rows that multiply e4m3; 0: there is none. */
static int32_t widest_row(void) {
    int32_t widest = 0;
    for (int32_t i = 0; i < flash_kernel_count(); i++) {
        flash_config_t config = FLASH_CONFIG_INIT;
        assert_success(flash_kernel_config(flash_kernel_at(i), &config));
        if (config.arch == FLASH_ARCH_SM90 && config.operand_dtype == FLASH_DTYPE_E4M3 &&
            config.d_head > widest)
            widest = config.d_head;
    }
    return widest;
}

TEST(v_is_transposed_into_the_workspace) {
    for (int32_t d_head = 64; d_head <= widest_row(); d_head += 64) {
        flash_forward_args_t args = make_args(d_head, 300);
        const int64_t panel = 128 * d_head;
        assert_success(flash_workspace_size(&args, NULL, &args.workspace_size));
        assert_int_equal(args.workspace_size, 3 * 2 * 3 * panel + 15);
        assert_success(flash_forward(&args, NULL, NULL));
        assert_int_equal(n_grids, 2);
        assert_int_equal(grids[0].blocks, 3 * 2 * 3 * ((d_head + 127) / 128));
        assert_false(grids[0].is_dependent);
        assert_true(grids[1].is_dependent);
        assert_int_equal(n_encoded, 4);
        assert_ptr_equal(encoded[2].data, (char *)array(4) + 16);
        assert_int_equal(encoded[2].extent[0], 128);
        assert_int_equal(encoded[2].extent[1], d_head);
        assert_int_equal(encoded[2].extent[2], 3);
        assert_int_equal(encoded[2].extent[3], 3 * 2);
        assert_int_equal(encoded[2].stride[1], 128);
        assert_int_equal(encoded[2].stride[2], panel);
        assert_int_equal(encoded[2].stride[3], 3 * panel);
        assert_int_equal(boxes[2].rows, d_head);
    }
}

TEST(a_call_without_keys_transposes_nothing) {
    flash_forward_args_t args = make_args(128, 0);
    args.k.data = args.v.data = NULL;
    assert_success(flash_workspace_size(&args, NULL, &args.workspace_size));
    assert_int_equal(args.workspace_size, 0);
    assert_success(flash_forward(&args, NULL, NULL));
    assert_int_equal(n_grids, 1);
    assert_false(grids[0].is_dependent);
}

TEST(a_smaller_workspace_is_refused) {
    flash_forward_args_t args = make_args(128, 300);
    assert_success(flash_workspace_size(&args, NULL, &args.workspace_size));
    args.workspace_size--;
    assert_refused(flash_forward(&args, NULL, NULL), FLASH_ERROR_WORKSPACE_TOO_SMALL,
                   "workspace_size");
    assert_int_equal(n_grids, 0);
}

int main(void) {
    return widest_row() > 0 ? run_all_tests(NULL, NULL) : SKIPPED_BY_CTEST;
}
