/*
 * Measures what flash_forward() costs the host beside the launch of an empty kernel: microseconds
 * per call, the median of many short bursts that never fill the launch queue.
 *
 *     nvcc -O2 -Iinclude tests/gpu/host_overhead.cu -o host_overhead -Lbuild/cuda -lflashattn
 */
#include "flashattn.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <vector>

namespace {

constexpr int BURSTS = 301, CALLS = 100, TOKENS = 64, HEADS = 2, D_HEAD = 128;

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

flash_tensor_t tensor(void *data) {
    return flash_tensor_bshd(data, TOKENS, HEADS, D_HEAD);
}

flash_forward_args_t arguments(char *memory) {
    const size_t bytes = size_t{2} * TOKENS * HEADS * D_HEAD;
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    args.device = FLASH_DEVICE_CUDA_CURRENT;
    args.dtype = FLASH_DTYPE_BF16;
    args.q = tensor(memory);
    args.k = tensor(memory + bytes);
    args.v = tensor(memory + 2 * bytes);
    args.o = tensor(memory + 3 * bytes);
    args.batch = 1;
    args.seqlen_q = args.seqlen_k = TOKENS;
    args.n_heads = args.n_heads_kv = HEADS;
    args.d_head = D_HEAD;
    return args;
}

} // namespace

int main() {
    void *memory = nullptr;
    require(cudaMalloc(&memory, size_t{8} * TOKENS * HEADS * D_HEAD) == cudaSuccess, "cudaMalloc");
    flash_forward_args_t args = arguments(static_cast<char *>(memory));
    const flash_kernel_t *kernel = nullptr;
    require(flash_prepare(&args, nullptr) == FLASH_SUCCESS, "flash_prepare");
    require(flash_select_kernel(&args, &kernel, nullptr, 0) == FLASH_SUCCESS,
            "flash_select_kernel");

    const auto empty = [] { empty_kernel<<<HEADS, 128>>>(large_params{}); };
    const auto selected = [&] { flash_forward(&args, nullptr, nullptr); };
    const auto given = [&] { flash_forward(&args, kernel, nullptr); };
    require(flash_forward(&args, kernel, nullptr) == FLASH_SUCCESS, "flash_forward");
    for (int turn = 0; turn < 3; turn++)
        std::printf("empty kernel %.2f us, flash_forward %.2f us, with a kernel %.2f us\n",
                    median_microseconds(empty), median_microseconds(selected),
                    median_microseconds(given));
    return 0;
}
