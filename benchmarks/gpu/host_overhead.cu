/*
 * Measures what flash_forward() costs the host beside the launch of an empty kernel: microseconds
 * per call, the median of many short bursts that never fill the launch queue. Decode calls launch
 * two kernels, calls that mix chunks of prompts with decoding three.
 *
 *     nvcc -O2 -Iinclude benchmarks/gpu/host_overhead.cu -o host_overhead -Lbuild/cuda -lflashattn
 */
#include "flashattn.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <vector>

namespace {

constexpr int BURSTS = 101, CALLS = 100;
constexpr int BATCH = 8, KEYS = 4096, PAGE = 16, CHUNK = 512;
constexpr int HEADS = 32, HEADS_KV = 8, D_HEAD = 128;

struct large_params { /* as large as what an attention kernel is given */
    char bytes[256];
};

__global__ void empty_kernel(const __grid_constant__ large_params params) {
    (void)params;
}

void require(bool holds, const char *what) {
    if (holds)
        return;
    std::fprintf(stderr, "%s: %s\n", what, flash_last_error());
    std::exit(1);
}

/* Allocates zeroed memory of the device, which is never freed. */
void *device_memory(size_t bytes) {
    void *memory = nullptr;
    require(cudaMalloc(&memory, bytes) == cudaSuccess, "cudaMalloc");
    require(cudaMemset(memory, 0, bytes) == cudaSuccess, "cudaMemset");
    return memory;
}

const int32_t *device_array(const std::vector<int32_t> &values) {
    const size_t bytes = values.size() * sizeof(int32_t);
    void *memory = device_memory(bytes);
    require(cudaMemcpy(memory, values.data(), bytes, cudaMemcpyHostToDevice) == cudaSuccess,
            "cudaMemcpy");
    return static_cast<const int32_t *>(memory);
}

flash_tensor_t tensor(int64_t entries, int64_t tokens, int64_t heads) {
    return flash_tensor_bshd(device_memory(size_t(entries * tokens * heads) * D_HEAD * 2), tokens,
                             heads, D_HEAD);
}

/* Returns a call of so many queries of each sequence over caches of one length. */
flash_forward_args_t call_of(int64_t queries) {
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    args.device = FLASH_DEVICE_CUDA_CURRENT;
    args.dtype = FLASH_DTYPE_BF16;
    args.flags = FLASH_FLAG_CAUSAL;
    args.q = tensor(BATCH, queries, HEADS);
    args.k = tensor(BATCH, KEYS, HEADS_KV);
    args.v = tensor(BATCH, KEYS, HEADS_KV);
    args.o = tensor(BATCH, queries, HEADS);
    args.batch = BATCH;
    args.seqlen_q = queries;
    args.seqlen_k = KEYS;
    args.n_heads = HEADS;
    args.n_heads_kv = HEADS_KV;
    args.d_head = D_HEAD;
    return args;
}

void use_lengths(flash_forward_args_t &args) {
    args.seqused_k = device_array(std::vector<int32_t>(BATCH, KEYS - 1));
}

void use_pages(flash_forward_args_t &args, flash_paging_t &paging) {
    std::vector<int32_t> ids(BATCH * KEYS / PAGE);
    for (size_t i = 0; i < ids.size(); i++)
        ids[i] = int32_t(i);
    paging = FLASH_PAGING_INIT;
    paging.page_size = PAGE;
    paging.n_pages = int64_t(ids.size());
    paging.page_table = device_array(ids);
    paging.page_table_stride = KEYS / PAGE;
    args.k = flash_tensor_bshd(args.k.data, PAGE, HEADS_KV, D_HEAD);
    args.v = flash_tensor_bshd(args.v.data, PAGE, HEADS_KV, D_HEAD);
    args.paging = &paging;
    use_lengths(args);
}

/* Makes all sequences but the last have one query. */
void mix(flash_forward_args_t &args) {
    std::vector<int32_t> ends(BATCH + 1);
    for (int b = 0; b < BATCH; b++)
        ends[b + 1] = ends[b] + (b + 1 < BATCH ? 1 : CHUNK);
    args.cu_seqlens_q = device_array(ends);
}

template <typename call_t> double median_microseconds(call_t call) {
    std::vector<double> times;
    for (int burst = 0; burst < BURSTS; burst++) {
        const auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < CALLS; i++)
            call();
        const std::chrono::duration<double, std::micro> took =
            std::chrono::steady_clock::now() - begin;
        require(cudaDeviceSynchronize() == cudaSuccess, "cudaDeviceSynchronize");
        times.push_back(took.count() / CALLS);
    }
    std::nth_element(times.begin(), times.begin() + BURSTS / 2, times.end());
    return times[BURSTS / 2];
}

/* Times a call in turns with the empty kernel. */
void report(const char *name, flash_forward_args_t args) {
    const flash_kernel_t *kernel = nullptr;
    require(flash_select_kernel(&args, &kernel, nullptr, 0) == FLASH_SUCCESS,
            "flash_select_kernel");
    require(flash_prepare(&args, kernel) == FLASH_SUCCESS, "flash_prepare");
    require(flash_workspace_size(&args, kernel, &args.workspace_size) == FLASH_SUCCESS,
            "flash_workspace_size");
    args.workspace = args.workspace_size > 0 ? device_memory(args.workspace_size) : nullptr;
    require(flash_forward(&args, kernel, nullptr) == FLASH_SUCCESS, "flash_forward");
    const double empty = median_microseconds([] { empty_kernel<<<HEADS, 128>>>(large_params{}); });
    const double selected = median_microseconds([&] { flash_forward(&args, nullptr, nullptr); });
    const double given = median_microseconds([&] { flash_forward(&args, kernel, nullptr); });
    std::printf("%-22s %10.2f %10.2f %10.2f   %s\n", name, empty, selected, given,
                flash_kernel_name(kernel));
}

} // namespace

int main() {
    flash_paging_t paging;
    flash_forward_args_t args = call_of(CHUNK);
    std::printf("%-22s %10s %10s %10s   %s\n", "us per call", "empty", "selected", "given",
                "kernel");
    report("chunks", args);
    use_pages(args, paging);
    report("chunks, pages", args);
    mix(args);
    report("mixed, pages", args);
    args = call_of(1);
    report("decode", args);
    use_lengths(args);
    report("decode, lengths", args);
    use_pages(args, paging);
    report("decode, pages", args);
    return 0;
}
