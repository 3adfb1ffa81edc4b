// Measures what a call costs before any attention is computed: look-up, workspace size, selection,
// and flash_forward() on a problem of one score, with the kernel chosen or given.
// docs/performance.md has the aims and the results.
#include "flashattn.h"

#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

namespace {

// Fails the benchmark with the library's message.
bool failed(benchmark::State &state, flash_status_t status) {
    if (status == FLASH_SUCCESS)
        return false;
    state.SkipWithError(flash_last_error());
    return true;
}

// A problem of one query, seqlen_k keys, and heads of 8 elements.
class Problem {
  public:
    explicit Problem(std::int64_t seqlen_k, std::int64_t n_heads)
        : q_(static_cast<std::size_t>(n_heads * kHead)), o_(q_.size()),
          k_(static_cast<std::size_t>(seqlen_k * n_heads * kHead)) {
        args_.dtype = FLASH_DTYPE_FP32;
        args_.q = flash_tensor_bshd(q_.data(), 1, n_heads, kHead);
        args_.o = flash_tensor_bshd(o_.data(), 1, n_heads, kHead);
        args_.k = args_.v = flash_tensor_bshd(k_.data(), seqlen_k, n_heads, kHead);
        args_.batch = args_.seqlen_q = 1;
        args_.seqlen_k = seqlen_k;
        args_.n_heads = args_.n_heads_kv = n_heads;
        args_.d_head = kHead;
    }

    flash_status_t allocate_workspace() {
        const flash_status_t status = flash_workspace_size(&args_, nullptr, &args_.workspace_size);
        workspace_.resize(args_.workspace_size);
        args_.workspace = workspace_.data();
        return status;
    }

    const flash_forward_args_t *args() const {
        return &args_;
    }

  private:
    static constexpr std::int64_t kHead = 8;

    std::vector<float> q_, o_, k_;
    std::vector<unsigned char> workspace_;
    flash_forward_args_t args_ = FLASH_FORWARD_ARGS_INIT;
};

// Looks up every row that this machine runs, one after the other.
void lookup_kernel(benchmark::State &state) {
    std::vector<flash_config_t> configs;
    for (std::int32_t i = 0; i < flash_kernel_count(); i++) {
        flash_config_t config = FLASH_CONFIG_INIT;
        if (failed(state, flash_kernel_config(flash_kernel_at(i), &config)))
            return;
        if (flash_lookup_kernel(&config) != nullptr)
            configs.push_back(config);
    }
    std::size_t i = 0;
    for (auto _ : state) {
        benchmark::DoNotOptimize(flash_lookup_kernel(&configs[i]));
        i = i + 1 == configs.size() ? 0 : i + 1;
    }
}
BENCHMARK(lookup_kernel);

void workspace_size(benchmark::State &state) {
    const Problem problem(1, 1);
    std::uint64_t size = 0;
    for (auto _ : state)
        if (failed(state, flash_workspace_size(problem.args(), nullptr, &size)))
            return;
}
BENCHMARK(workspace_size);

void select_kernel(benchmark::State &state) {
    const Problem problem(1, 1);
    const flash_kernel_t *kernel = nullptr;
    for (auto _ : state)
        if (failed(state, flash_select_kernel(problem.args(), &kernel, nullptr, 0)))
            return;
}
BENCHMARK(select_kernel);

void forward(benchmark::State &state) {
    Problem problem(state.range(0), state.range(1));
    const flash_kernel_t *kernel = nullptr;
    if (failed(state, flash_set_num_threads(static_cast<std::int32_t>(state.range(2)))) ||
        failed(state, problem.allocate_workspace()) ||
        failed(state, flash_prepare(problem.args(), nullptr)) ||
        (state.range(3) && failed(state, flash_select_kernel(problem.args(), &kernel, nullptr, 0))))
        return;
    for (auto _ : state)
        if (failed(state, flash_forward(problem.args(), kernel, nullptr)))
            return;
    flash_set_num_threads(0);
}
BENCHMARK(forward)
    ->ArgNames({"keys", "heads", "threads", "given"})
    ->Args({1, 1, 1, 0})
    ->Args({1, 1, 1, 1})
    ->Args({8192, 8, 1, 0})
    ->Args({8192, 8, 2, 0})
    ->UseRealTime();

} // namespace

BENCHMARK_MAIN();
