/*
 * These are the products of wgmma.cuh of operands of e4m3: d[64 x N] (+)= a[64 x 32] * b[32 x N].
 * Both operands are K-major, since the instruction transposes only 16-bit ones. A fragment of A has
 * 32 columns; with t = lane % 4, register 0 has columns 4t ... 4t + 3 of row lane / 4, register 1
 * those of the row 8 below, and registers 2 and 3 those 16 further on.
 */
#ifndef FLASH_KERNELS_SM90_PTX_WGMMA_E4M3_CUH
#define FLASH_KERNELS_SM90_PTX_WGMMA_E4M3_CUH

#include "sm90/ptx/wgmma.cuh"

#define SM90_O4(i)        "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SM90_LIST_8       "%0, %1, %2, %3"
#define SM90_OPERANDS_8   SM90_O4(0)
#define SM90_LIST_72      SM90_LIST_64 ", %32, %33, %34, %35"
#define SM90_LIST_104     SM90_LIST_96 ", %48, %49, %50, %51"
#define SM90_LIST_136     SM90_LIST_128 ", %64, %65, %66, %67"
#define SM90_OPERANDS_72  SM90_OPERANDS_64, SM90_O4(32)
#define SM90_OPERANDS_104 SM90_OPERANDS_96, SM90_O4(48)
#define SM90_OPERANDS_136 SM90_OPERANDS_128, SM90_O4(64)

/* P0 and so on are the numbers of the operands that follow the accumulators. */
#define SM90_WGMMA_OF_E4M3(N, P0, P1, P2, P3, P4, P5)                                              \
    template <> struct wgmma<FLASH_DTYPE_E4M3, N> {                                                \
        static __device__ __forceinline__ void shared_a(float (&d)[N / 2], uint64_t a, uint64_t b, \
                                                        bool accumulate) {                         \
            asm volatile("{\n.reg .pred accumulate;\n"                                             \
                         "setp.ne.b32 accumulate, %" P2 ", 0;\n"                                   \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3"                \
                         " {" SM90_LIST_##N "}, %" P0 ", %" P1 ", accumulate, 1, 1;\n}\n"          \
                         : SM90_OPERANDS_##N                                                       \
                         : "l"(a), "l"(b), "r"((int)accumulate));                                  \
        }                                                                                          \
        template <int N_MAJOR>                                                                     \
        static __device__ __forceinline__ void                                                     \
        register_a(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate) {       \
            static_assert(N_MAJOR == 0, "B is K-major");                                           \
            asm volatile("{\n.reg .pred accumulate;\n"                                             \
                         "setp.ne.b32 accumulate, %" P5 ", 0;\n"                                   \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3"                \
                         " {" SM90_LIST_##N "}, {%" P0 ", %" P1 ", %" P2 ", %" P3 "}, %" P4        \
                                            ", accumulate, 1, 1;\n}\n"                             \
                         : SM90_OPERANDS_##N                                                       \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                     \
                           "r"((int)accumulate));                                                  \
        }                                                                                          \
    };

SM90_WGMMA_OF_E4M3(8, "4", "5", "6", "7", "8", "9")
SM90_WGMMA_OF_E4M3(64, "32", "33", "34", "35", "36", "37")
SM90_WGMMA_OF_E4M3(72, "36", "37", "38", "39", "40", "41")
SM90_WGMMA_OF_E4M3(96, "48", "49", "50", "51", "52", "53")
SM90_WGMMA_OF_E4M3(128, "64", "65", "66", "67", "68", "69")
SM90_WGMMA_OF_E4M3(104, "52", "53", "54", "55", "56", "57")
SM90_WGMMA_OF_E4M3(136, "68", "69", "70", "71", "72", "73")

#endif
