// Measures attention of each kernel that this machine runs, in a workspace that is allocated once:
// prefill in GFLOP/s (4 heads seqlen seqlen d_head, half when causal), and decode, with one query
// or four as in speculative decoding, in bytes of K and V read per second. Compare with the
// ceilings of the same run.
#include "ceilings.h"

#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

struct Shape {
    std::int64_t seqlen_q, seqlen_k, n_heads, n_heads_kv, d_head;
    bool causal;
    std::size_t begin;        // of each tensor, in bytes from that of a cache line
    bool heads_first = false; // head after head all tokens, else token after token all heads
};

// A row of the table, and what is shown of its configuration, such as "AMX/BF16".
struct Kernel {
    const flash_kernel_t *row;
    std::int32_t dtype;
    std::string name;
};

std::string short_name(const flash_config_t &config) {
    char text[FLASH_CONFIG_TEXT_SIZE] = "";
    if (flash_config_format(&config, text, sizeof text) != FLASH_SUCCESS)
        return "unnamed";
    std::string name(text);
    name.erase(name.find(", any"));
    return name.replace(name.find(" ("), 2, "/");
}

constexpr std::size_t CACHE_LINE = 64;
constexpr std::size_t AS_FROM_MALLOC = 16;

std::size_t element_size(std::int32_t dtype) {
    return dtype == FLASH_DTYPE_FP32 ? 4 : 2;
}

// Memory that begins `begin` bytes into a cache line.
class Memory {
  public:
    Memory(std::size_t size, std::size_t begin) : bytes_(size + 2 * CACHE_LINE), size_(size) {
        const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
        data_ = bytes_.data() + (CACHE_LINE - address % CACHE_LINE) + begin;
    }

    Memory(const Memory &) = delete;

    unsigned char *data() {
        return data_;
    }

    std::size_t size() const {
        return size_;
    }

  private:
    std::vector<unsigned char> bytes_;
    std::size_t size_;
    unsigned char *data_;
};

// Fills memory with numbers of magnitude 1/2 ... 1 and either sign, from the same bits for every
// type.
void fill(Memory &memory, std::int32_t dtype) {
    std::mt19937 random(1);
    const std::size_t count = memory.size() / element_size(dtype);
    for (std::size_t i = 0; i < count; i++) {
        const std::uint32_t sign = random() & 0x80000000u;
        const std::uint32_t fraction = random() & 0x7fffff;
        const std::uint32_t bits = sign | 0x3f000000u | fraction;
        const std::uint16_t bf16 = static_cast<std::uint16_t>(bits >> 16);
        const std::uint16_t fp16 =
            static_cast<std::uint16_t>(sign >> 16 | 0x3800u | fraction >> 13);
        if (dtype == FLASH_DTYPE_FP32)
            std::memcpy(memory.data() + i * 4, &bits, 4);
        else
            std::memcpy(memory.data() + i * 2, dtype == FLASH_DTYPE_FP16 ? &fp16 : &bf16, 2);
    }
}

class Problem {
  public:
    Problem(const Shape &s, const Kernel &kernel)
        : kernel_(kernel.row), q_(bytes(s.seqlen_q, s.n_heads, s.d_head, kernel.dtype), s.begin),
          k_(bytes(s.seqlen_k, s.n_heads_kv, s.d_head, kernel.dtype), s.begin),
          v_(k_.size(), s.begin), o_(q_.size(), s.begin) {
        fill(q_, kernel.dtype);
        fill(k_, kernel.dtype);
        fill(v_, kernel.dtype);
        args_.dtype = kernel.dtype;
        args_.flags = s.causal ? FLASH_FLAG_CAUSAL : 0;
        args_.q = tensor(q_, s, s.seqlen_q, s.n_heads);
        args_.k = tensor(k_, s, s.seqlen_k, s.n_heads_kv);
        args_.v = tensor(v_, s, s.seqlen_k, s.n_heads_kv);
        args_.o = tensor(o_, s, s.seqlen_q, s.n_heads);
        args_.batch = 1;
        args_.seqlen_q = s.seqlen_q;
        args_.seqlen_k = s.seqlen_k;
        args_.n_heads = s.n_heads;
        args_.n_heads_kv = s.n_heads_kv;
        args_.d_head = s.d_head;
    }

    flash_status_t prepare() {
        const flash_status_t status = flash_workspace_size(&args_, kernel_, &args_.workspace_size);
        workspace_.resize(args_.workspace_size);
        args_.workspace = workspace_.data();
        return status == FLASH_SUCCESS ? flash_prepare(&args_, kernel_) : status;
    }

    flash_status_t forward() {
        return flash_forward(&args_, kernel_, nullptr);
    }

    std::size_t key_bytes() const {
        return k_.size() + v_.size();
    }

  private:
    static std::size_t bytes(std::int64_t seqlen, std::int64_t heads, std::int64_t d_head,
                             std::int32_t dtype) {
        return static_cast<std::size_t>(seqlen * heads * d_head) * element_size(dtype);
    }

    static flash_tensor_t tensor(Memory &data, const Shape &s, std::int64_t seqlen,
                                 std::int64_t heads) {
        return s.heads_first ? flash_tensor_bhsd(data.data(), heads, seqlen, s.d_head)
                             : flash_tensor_bshd(data.data(), seqlen, heads, s.d_head);
    }

    const flash_kernel_t *kernel_;
    Memory q_, k_, v_, o_;
    std::vector<unsigned char> workspace_;
    flash_forward_args_t args_ = FLASH_FORWARD_ARGS_INIT;
};

void attention(benchmark::State &state, Shape shape, Kernel kernel, int threads) {
    Problem problem(shape, kernel);
    if (flash_set_num_threads(threads) != FLASH_SUCCESS || problem.prepare() != FLASH_SUCCESS)
        return state.SkipWithError(flash_last_error());
    for (auto _ : state)
        if (problem.forward() != FLASH_SUCCESS)
            return state.SkipWithError(flash_last_error());
    const double n = static_cast<double>(state.iterations());
    const double scores = static_cast<double>(shape.seqlen_q) *
                          static_cast<double>(shape.seqlen_k) * (shape.causal ? 0.5 : 1);
    if (shape.seqlen_q < shape.seqlen_k)
        state.SetBytesProcessed(static_cast<std::int64_t>(problem.key_bytes()) *
                                static_cast<std::int64_t>(state.iterations()));
    else
        state.counters["GFLOP/s"] =
            benchmark::Counter(4 * n * scores * static_cast<double>(shape.n_heads * shape.d_head),
                               benchmark::Counter::kIsRate, benchmark::Counter::kIs1000);
}

void add(const std::string &what, const Shape &shape, const Kernel &kernel) {
    for (const int threads : {1, 2})
        benchmark::RegisterBenchmark(
            (what + "/" + kernel.name + "/threads:" + std::to_string(threads)).c_str(), attention,
            shape, kernel, threads)
            ->UseRealTime()
            ->Unit(benchmark::kMillisecond);
}

void add_prefill(std::int64_t seqlen, std::int64_t d_head, bool causal, const Kernel &kernel) {
    const std::string name = "prefill/" + std::to_string(seqlen) + "/d" + std::to_string(d_head) +
                             (causal ? "/causal" : "/full");
    add(name, {seqlen, seqlen, 16, 16, d_head, causal, AS_FROM_MALLOC}, kernel);
    add(name + "/heads_first", {seqlen, seqlen, 16, 16, d_head, causal, 0, true}, kernel);
}

void add_decode(std::int64_t seqlen, const Kernel &kernel) {
    const std::string name = "decode/" + std::to_string(seqlen);
    add(name, {1, seqlen, 32, 8, 128, false, AS_FROM_MALLOC}, kernel);
    add(name + "/aligned", {1, seqlen, 32, 8, 128, false, 0}, kernel);
    add(name + "/heads_first", {1, seqlen, 32, 8, 128, false, 0, true}, kernel);
    add(name + "/queries_4", {4, seqlen, 32, 8, 128, true, AS_FROM_MALLOC}, kernel);
}

void add_kernel(const Kernel &kernel) {
    for (const std::int64_t seqlen : {1024, 4096})
        for (const std::int64_t d_head : {64, 128})
            for (const bool causal : {false, true})
                add_prefill(seqlen, d_head, causal, kernel);
    for (const std::int64_t seqlen : {8192, 32768})
        add_decode(seqlen, kernel);
    add("decode/8192/ungrouped", {1, 8192, 32, 32, 128, false, AS_FROM_MALLOC}, kernel);
}

} // namespace

int main(int argc, char **argv) {
    for (std::int32_t i = 0; i < flash_kernel_count(); i++) {
        flash_config_t config = FLASH_CONFIG_INIT;
        if (flash_kernel_config(flash_kernel_at(i), &config) == FLASH_SUCCESS &&
            config.op == FLASH_OP_FORWARD && config.arch != FLASH_ARCH_REFERENCE &&
            config.arch < FLASH_ARCH_SM80 && flash_lookup_kernel(&config) != nullptr)
            add_kernel({flash_kernel_at(i), config.dtype, short_name(config)});
    }
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv))
        return 1;
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
