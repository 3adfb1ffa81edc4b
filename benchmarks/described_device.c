/*
 * Measures what calls for a CUDA device cost the host, without one: this program describes an H200,
 * and the linker puts the __wrap_ functions here in the place of those that call the driver
 * (CMakeLists.txt). Microseconds per call, the least of many short bursts.
 *
 * choice     select_kernel() alone, of a problem that has been read
 * select     flash_select_kernel(), without the reason
 * selected   flash_forward() up to the launches, which do nothing; the library chooses the kernel
 * given      the same with the kernel given
 */
#include "arguments/forward.h"
#include "core/device.h"
#include "cuda/runtime/grid.h"
#include "cuda/runtime/scope.h"
#include "cuda/tma/tensor_map.h"
#include "flashattn.h"
#include "select/select.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BURSTS = 1000, CALLS = 100 };
enum { BATCH = 8, KEYS = 4096, PAGE = 16, CHUNK = 512, HEADS = 32, HEADS_KV = 8, D_HEAD = 128 };

static const device_t h200 = {.number = FLASH_DEVICE_CUDA,
                              .compute_capability = 90,
                              .n_multiprocessors = 132,
                              .shared_memory_per_block = 227 * 1024};

/* ---- What is not called ---- */

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
    *found = h200;
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
    (void)grid;
    (void)params;
    (void)stream;
    return FLASH_SUCCESS;
}

int __wrap_cudaFuncSetAttribute(const void *symbol, int attribute, int value) {
    (void)symbol;
    (void)attribute;
    (void)value;
    return 0;
}

/* ---- Calls ---- */

static void require(flash_status_t status, const char *what) {
    if (status == FLASH_SUCCESS)
        return;
    fprintf(stderr, "%s: %s\n", what, flash_last_error());
    exit(1);
}

/* Returns the address of an array of the device, which no code here looks at. */
static void *array(int number) {
    return (void *)((uintptr_t)(number + 1) << 40);
}

/* Returns a call of that many queries of each sequence over caches of one length. */
static flash_forward_args_t call_of(int64_t queries) {
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    args.device = FLASH_DEVICE_CUDA;
    args.dtype = FLASH_DTYPE_BF16;
    args.flags = FLASH_FLAG_CAUSAL;
    args.q = flash_tensor_bshd(array(0), queries, HEADS, D_HEAD);
    args.k = flash_tensor_bshd(array(1), KEYS, HEADS_KV, D_HEAD);
    args.v = flash_tensor_bshd(array(2), KEYS, HEADS_KV, D_HEAD);
    args.o = flash_tensor_bshd(array(3), queries, HEADS, D_HEAD);
    args.batch = BATCH;
    args.seqlen_q = queries;
    args.seqlen_k = KEYS;
    args.n_heads = HEADS;
    args.n_heads_kv = HEADS_KV;
    args.d_head = D_HEAD;
    args.workspace = array(4);
    args.workspace_size = UINT64_MAX;
    return args;
}

static void use_pages(flash_forward_args_t *args, flash_paging_t *paging) {
    *paging = (flash_paging_t)FLASH_PAGING_INIT;
    paging->page_size = PAGE;
    paging->n_pages = (int64_t)BATCH * KEYS / PAGE;
    paging->page_table = array(5);
    paging->page_table_stride = KEYS / PAGE;
    args->k = flash_tensor_bshd(args->k.data, PAGE, HEADS_KV, D_HEAD);
    args->v = flash_tensor_bshd(args->v.data, PAGE, HEADS_KV, D_HEAD);
    args->seqused_k = array(6);
    args->paging = paging;
}

/* ---- Times ---- */

/* A call, read and unread, and the kernel that it is given. */
typedef struct call {
    const flash_forward_args_t *args;
    problem_t problem;
    const flash_kernel_t *kernel;
} call_t;

static void choose(call_t *call) {
    require(select_kernel(&call->problem, &h200, &call->kernel, NULL), "select_kernel");
}

static void select_one(call_t *call) {
    require(flash_select_kernel(call->args, &call->kernel, NULL, 0), "flash_select_kernel");
}

static void launch_selected(call_t *call) {
    require(flash_forward(call->args, NULL, NULL), "flash_forward");
}

static void launch_given(call_t *call) {
    require(flash_forward(call->args, call->kernel, NULL), "flash_forward");
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double least_microseconds(void (*run)(call_t *call), call_t *call) {
    double least = 1;
    for (int burst = 0; burst < BURSTS; burst++) {
        const double begin = seconds();
        for (int i = 0; i < CALLS; i++)
            run(call);
        const double took = seconds() - begin;
        least = took < least ? took : least;
    }
    return least * 1e6 / CALLS;
}

static void report(const char *name, const flash_forward_args_t *args) {
    flash_forward_args_t checked;
    call_t call = {.args = args};
    require(arguments_read(args, &checked, &call.problem), "arguments_read");
    printf("%-18s", name);
    printf(" %8.2f", least_microseconds(choose, &call));
    printf(" %8.2f", least_microseconds(select_one, &call));
    printf(" %8.2f", least_microseconds(launch_selected, &call));
    printf(" %8.2f", least_microseconds(launch_given, &call));
    printf("   %s\n", flash_kernel_name(call.kernel));
}

int main(void) {
    flash_paging_t paging;
    flash_forward_args_t args = call_of(1);
    printf("%-18s %8s %8s %8s %8s   %s\n", "us per call", "choice", "select", "selected", "given",
           "kernel");
    report("decode", &args);
    use_pages(&args, &paging);
    report("decode, pages", &args);
    args = call_of(CHUNK);
    report("prefill", &args);
    use_pages(&args, &paging);
    report("prefill, pages", &args);
    args = call_of(CHUNK);
    args.seqused_k = array(6);
    args.cu_seqlens_q = array(7);
    report("ragged", &args);
    use_pages(&args, &paging);
    report("ragged, pages", &args);
    return 0;
}
