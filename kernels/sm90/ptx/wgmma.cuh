/*
 * The four warps of a warpgroup compute d[64 x N] (+)= a[64 x 16] * b[16 x N] asynchronously, of
 * 16-bit operands, in fp32 accumulators. PTX ISA, "Asynchronous Warpgroup Level Matrix
 * Instructions": wgmma.mma_async, wgmma.fence, wgmma.commit_group, wgmma.wait_group. With g = lane
 * / 4 and t = lane % 4 in warp w of the group, a thread holds columns 8j + 2t and 8j + 2t + 1 of
 * row 16w + g (d[4j], d[4j + 1]) and of row 16w + g + 8 (d[4j + 2], d[4j + 3]).
 */
#ifndef FLASH_KERNELS_SM90_PTX_WGMMA_CUH
#define FLASH_KERNELS_SM90_PTX_WGMMA_CUH

#include "common/ptx/pair_types.cuh"

#include <stdint.h>

/* Orders ordinary accesses to registers before the first wgmma that uses them. */
static __device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}

/* Makes the wgmma since the last call a group. */
static __device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

/* Waits until at most PENDING groups are under way. */
template <int PENDING> static __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(PENDING) : "memory");
}

/* Keeps accesses to accumulators on their side of this point: the compiler does not see that a
 * wgmma writes them until its group has been waited for. */
template <int N> static __device__ __forceinline__ void pin_accumulators(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* Drops what accumulators hold, before a wgmma that overwrites them: otherwise the compiler keeps
 * their registers for them from one product to the next. */
template <int N> static __device__ __forceinline__ void drop_accumulators(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i)
        asm volatile("" : "=f"(d[i]));
}

/* The instruction has two forms. shared_a: A and B from shared memory, both K-major or, if they are
 * TRANSPOSED, both M- or N-major. register_a: A from registers, B from shared memory, N-major.
 * accumulate false: d is overwritten. SIGN: of the product, 1 or -1. */
template <int DTYPE, int N> struct wgmma;

/* These are the accumulators in the instruction, and as operands of asm: eight per macro. */
#define SM90_D0  "%0, %1, %2, %3, %4, %5, %6, %7"
#define SM90_D1  ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SM90_D2  ", %16, %17, %18, %19, %20, %21, %22, %23"
#define SM90_D3  ", %24, %25, %26, %27, %28, %29, %30, %31"
#define SM90_D4  ", %32, %33, %34, %35, %36, %37, %38, %39"
#define SM90_D5  ", %40, %41, %42, %43, %44, %45, %46, %47"
#define SM90_D6  ", %48, %49, %50, %51, %52, %53, %54, %55"
#define SM90_D7  ", %56, %57, %58, %59, %60, %61, %62, %63"
#define SM90_D8  ", %64, %65, %66, %67, %68, %69, %70, %71"
#define SM90_D9  ", %72, %73, %74, %75, %76, %77, %78, %79"
#define SM90_D10 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define SM90_D11 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define SM90_D12 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define SM90_D13 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define SM90_D14 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define SM90_D15 ", %120, %121, %122, %123, %124, %125, %126, %127"

#define SM90_O8(i)                                                                                 \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])

#define SM90_LIST_16  SM90_D0
#define SM90_LIST_32  SM90_LIST_16 SM90_D1
#define SM90_LIST_48  SM90_LIST_32 SM90_D2
#define SM90_LIST_64  SM90_LIST_48 SM90_D3
#define SM90_LIST_80  SM90_LIST_64 SM90_D4
#define SM90_LIST_96  SM90_LIST_80 SM90_D5
#define SM90_LIST_112 SM90_LIST_96 SM90_D6
#define SM90_LIST_128 SM90_LIST_112 SM90_D7
#define SM90_LIST_144 SM90_LIST_128 SM90_D8
#define SM90_LIST_160 SM90_LIST_144 SM90_D9
#define SM90_LIST_176 SM90_LIST_160 SM90_D10
#define SM90_LIST_192 SM90_LIST_176 SM90_D11
#define SM90_LIST_208 SM90_LIST_192 SM90_D12
#define SM90_LIST_224 SM90_LIST_208 SM90_D13
#define SM90_LIST_240 SM90_LIST_224 SM90_D14
#define SM90_LIST_256 SM90_LIST_240 SM90_D15

#define SM90_OPERANDS_16  SM90_O8(0)
#define SM90_OPERANDS_32  SM90_OPERANDS_16, SM90_O8(8)
#define SM90_OPERANDS_48  SM90_OPERANDS_32, SM90_O8(16)
#define SM90_OPERANDS_64  SM90_OPERANDS_48, SM90_O8(24)
#define SM90_OPERANDS_80  SM90_OPERANDS_64, SM90_O8(32)
#define SM90_OPERANDS_96  SM90_OPERANDS_80, SM90_O8(40)
#define SM90_OPERANDS_112 SM90_OPERANDS_96, SM90_O8(48)
#define SM90_OPERANDS_128 SM90_OPERANDS_112, SM90_O8(56)
#define SM90_OPERANDS_144 SM90_OPERANDS_128, SM90_O8(64)
#define SM90_OPERANDS_160 SM90_OPERANDS_144, SM90_O8(72)
#define SM90_OPERANDS_176 SM90_OPERANDS_160, SM90_O8(80)
#define SM90_OPERANDS_192 SM90_OPERANDS_176, SM90_O8(88)
#define SM90_OPERANDS_208 SM90_OPERANDS_192, SM90_O8(96)
#define SM90_OPERANDS_224 SM90_OPERANDS_208, SM90_O8(104)
#define SM90_OPERANDS_240 SM90_OPERANDS_224, SM90_O8(112)
#define SM90_OPERANDS_256 SM90_OPERANDS_240, SM90_O8(120)

/* P0 and so on are the numbers of the operands that follow the accumulators. */
#define SM90_WGMMA_OF_TYPE(DTYPE, TYPE, N, P0, P1, P2, P3, P4, P5, P6, P7)                         \
    template <> struct wgmma<DTYPE, N> {                                                           \
        template <int SIGN = 1, int TRANSPOSED = 0>                                                \
        static __device__ __forceinline__ void shared_a(float (&d)[N / 2], uint64_t a, uint64_t b, \
                                                        bool accumulate) {                         \
            asm volatile("{\n.reg .pred accumulate;\n"                                             \
                         "setp.ne.b32 accumulate, %" P2 ", 0;\n"                                   \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE           \
                         " {" SM90_LIST_##N "}, %" P0 ", %" P1 ", accumulate, 1, %" P3 ", %" P4    \
                                            ", %" P4 ";\n}\n"                                      \
                         : SM90_OPERANDS_##N                                                       \
                         : "l"(a), "l"(b), "r"((int)accumulate), "n"(SIGN), "n"(TRANSPOSED));      \
        }                                                                                          \
        template <int N_MAJOR, int SIGN = 1>                                                       \
        static __device__ __forceinline__ void                                                     \
        register_a(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate) {       \
            asm volatile("{\n.reg .pred accumulate;\n"                                             \
                         "setp.ne.b32 accumulate, %" P5 ", 0;\n"                                   \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE           \
                         " {" SM90_LIST_##N "}, {%" P0 ", %" P1 ", %" P2 ", %" P3 "}, %" P4        \
                                            ", accumulate, 1, %" P7 ", %" P6 ";\n}\n"              \
                         : SM90_OPERANDS_##N                                                       \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                     \
                           "r"((int)accumulate), "n"(N_MAJOR), "n"(SIGN));                         \
        }                                                                                          \
    };
#define SM90_WGMMA(N, ...) FLASH_PAIR_TYPES(SM90_WGMMA_OF_TYPE, N, __VA_ARGS__)

SM90_WGMMA(16, "8", "9", "10", "11", "12", "13", "14", "15")
SM90_WGMMA(32, "16", "17", "18", "19", "20", "21", "22", "23")
SM90_WGMMA(48, "24", "25", "26", "27", "28", "29", "30", "31")
SM90_WGMMA(64, "32", "33", "34", "35", "36", "37", "38", "39")
SM90_WGMMA(80, "40", "41", "42", "43", "44", "45", "46", "47")
SM90_WGMMA(96, "48", "49", "50", "51", "52", "53", "54", "55")
SM90_WGMMA(112, "56", "57", "58", "59", "60", "61", "62", "63")
SM90_WGMMA(128, "64", "65", "66", "67", "68", "69", "70", "71")
SM90_WGMMA(144, "72", "73", "74", "75", "76", "77", "78", "79")
SM90_WGMMA(160, "80", "81", "82", "83", "84", "85", "86", "87")
SM90_WGMMA(176, "88", "89", "90", "91", "92", "93", "94", "95")
SM90_WGMMA(192, "96", "97", "98", "99", "100", "101", "102", "103")
SM90_WGMMA(208, "104", "105", "106", "107", "108", "109", "110", "111")
SM90_WGMMA(224, "112", "113", "114", "115", "116", "117", "118", "119")
SM90_WGMMA(240, "120", "121", "122", "123", "124", "125", "126", "127")
SM90_WGMMA(256, "128", "129", "130", "131", "132", "133", "134", "135")

#endif
