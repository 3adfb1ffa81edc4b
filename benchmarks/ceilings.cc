// What the processor can do at most, measured in the same run as the kernels of attention.cc: tile
// products and fused multiply-adds from registers, and reads of memory. Instruction sets that the
// processor lacks are left out.
#include "ceilings.h"

#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

#if defined(__x86_64__)

constexpr int kRounds = 1000; // products of a register each, an iteration

template <int N> void report(benchmark::State &state, double flop_a_round) {
    state.counters["GFLOP/s"] =
        benchmark::Counter(flop_a_round * N * kRounds * static_cast<double>(state.iterations()),
                           benchmark::Counter::kIsRate, benchmark::Counter::kIs1000);
}

struct TileConfig {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
};

// There are four independent accumulators, with 16 x 16 x 32 multiply-adds each.
__attribute__((target("amx-tile"))) void amx_bf16(benchmark::State &state) {
    if (!machine_has(FLASH_ISA_AMX))
        return state.SkipWithError("no AMX");
    TileConfig config;
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    _tile_loadconfig(&config);
    for (auto _ : state)
        for (int i = 0; i < kRounds; i++)
            __asm__ volatile("tdpbf16ps %tmm6, %tmm4, %tmm0\n\t"
                             "tdpbf16ps %tmm7, %tmm4, %tmm1\n\t"
                             "tdpbf16ps %tmm6, %tmm5, %tmm2\n\t"
                             "tdpbf16ps %tmm7, %tmm5, %tmm3");
    _tile_release();
    report<4>(state, 2.0 * 16 * 16 * 32);
}
BENCHMARK(amx_bf16)->Name("ceiling/amx_bf16");

// x += y * z for fourteen registers x, all zeros, so that no value slows a product down.
#define SUM(product, width, x) product " %%" width "mm14, %%" width "mm15, %%" width "mm" #x "\n\t"
#define SUM_14(product, width)                                                                     \
    SUM(product, width, 0)                                                                         \
    SUM(product, width, 1)                                                                         \
    SUM(product, width, 2)                                                                         \
    SUM(product, width, 3)                                                                         \
    SUM(product, width, 4)                                                                         \
    SUM(product, width, 5)                                                                         \
    SUM(product, width, 6)                                                                         \
    SUM(product, width, 7)                                                                         \
    SUM(product, width, 8)                                                                         \
    SUM(product, width, 9)                                                                         \
    SUM(product, width, 10)                                                                        \
    SUM(product, width, 11)                                                                        \
    SUM(product, width, 12)                                                                        \
    SUM(product, width, 13)

#define ALL_SUMS                                                                                   \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",       \
        "xmm11", "xmm12", "xmm13"

// There are fourteen independent sums of products of pairs.
void avx512_bf16_dot(benchmark::State &state) {
    if (!machine_has(FLASH_ISA_AVX512_BF16))
        return state.SkipWithError("no AVX512_BF16");
    __asm__ volatile("vzeroall" : : : ALL_SUMS, "xmm14", "xmm15");
    for (auto _ : state)
        for (int i = 0; i < kRounds; i++)
            __asm__ volatile(SUM_14("vdpbf16ps", "z") : : : ALL_SUMS);
    report<14>(state, 2.0 * 32);
}
BENCHMARK(avx512_bf16_dot)->Name("ceiling/avx512_bf16_dot");

// There are fourteen independent sums.
void avx512_fma(benchmark::State &state) {
    if (!machine_has(FLASH_ISA_AVX512))
        return state.SkipWithError("no AVX-512");
    __asm__ volatile("vzeroall" : : : ALL_SUMS, "xmm14", "xmm15");
    for (auto _ : state)
        for (int i = 0; i < kRounds; i++)
            __asm__ volatile(SUM_14("vfmadd231ps", "z") : : : ALL_SUMS);
    report<14>(state, 2.0 * 16);
}
BENCHMARK(avx512_fma)->Name("ceiling/avx512_fma");

// There are fourteen independent sums.
void avx2_fma(benchmark::State &state) {
    if (!machine_has(FLASH_ISA_AVX2))
        return state.SkipWithError("no AVX2");
    __asm__ volatile("vzeroall" : : : ALL_SUMS, "xmm14", "xmm15");
    for (auto _ : state)
        for (int i = 0; i < kRounds; i++)
            __asm__ volatile(SUM_14("vfmadd231ps", "y") : : : ALL_SUMS);
    report<14>(state, 2.0 * 8);
}
BENCHMARK(avx2_fma)->Name("ceiling/avx2_fma");

#endif

// Sums up one word per cache line, so that little is done but reading lines.
void read_memory(benchmark::State &state) {
    constexpr std::size_t kWordsALine = 8;
    const std::size_t bytes = static_cast<std::size_t>(state.range(0)) << 20;
    const std::vector<std::uint64_t> memory(bytes / sizeof(std::uint64_t), 1);
    for (auto _ : state) {
        std::uint64_t sum[4] = {};
        for (std::size_t i = 0; i < memory.size(); i += 4 * kWordsALine)
            for (std::size_t j = 0; j < 4; j++)
                sum[j] += memory[i + j * kWordsALine];
        benchmark::DoNotOptimize(sum);
    }
    state.SetBytesProcessed(static_cast<std::int64_t>(bytes) *
                            static_cast<std::int64_t>(state.iterations()));
}
// The smaller size exceeds the caches of a core, the larger most shared caches.
BENCHMARK(read_memory)
    ->Name("ceiling/read")
    ->ArgName("MiB")
    ->Arg(16)
    ->Arg(1024)
    ->ThreadRange(1, 2)
    ->UseRealTime();

} // namespace

bool machine_has(std::uint32_t isa) {
    flash_device_info_t info = FLASH_DEVICE_INFO_INIT;
    return flash_device_info(FLASH_DEVICE_CPU, &info) == FLASH_SUCCESS && (info.isa & isa) != 0;
}
