/*
 * This file keeps arithmetic ahead of a wait. ptxas moves wgmma.wait_group up over arithmetic that
 * does not depend on it, and the products under way then have nothing beside them.
 */
#ifndef FLASH_KERNELS_SM90_PTX_ORDER_CUH
#define FLASH_KERNELS_SM90_PTX_ORDER_CUH

#include <stdint.h>

/* Completes two values, neither ever negative, before any later wait or access to memory: a store
 * that never happens depends on them. */
static __device__ __forceinline__ void complete_first(float a, float b, uint32_t shared) {
    asm volatile("{\n"
                 ".reg .pred never;\n"
                 "setp.lt.f32 never, %0, 0f00000000;\n"
                 "@never st.shared.f32 [%2], %0;\n"
                 "setp.lt.f32 never, %1, 0f00000000;\n"
                 "@never st.shared.f32 [%2], %1;\n"
                 "}\n" ::"f"(a),
                 "f"(b), "r"(shared)
                 : "memory");
}

/* Keeps instructions on their side: ptxas moves none over a look at the clock, whose result a store
 * that never happens uses. never_negative: uniform. */
static __device__ __forceinline__ void keep_order(int32_t never_negative, uint32_t shared) {
    asm volatile("{\n"
                 ".reg .pred never;\n"
                 ".reg .u32 now;\n"
                 "mov.u32 now, %%clock;\n"
                 "setp.lt.s32 never, %0, 0;\n"
                 "@never st.shared.u32 [%1], now;\n"
                 "}\n" ::"r"(never_negative),
                 "r"(shared)
                 : "memory");
}

/* Completes values before any later wait, product or access to memory: a store that hardly ever
 * happens depends on all of them. Nobody reads what it writes. */
template <int N>
static __device__ __forceinline__ void complete_all(const float *values, uint32_t unread) {
    constexpr uint32_t unlikely = 0x5a5a5a5au;
    uint32_t parts[4] = {0, 0, 0, 0}; /* more than one, for the latency */
#pragma unroll
    for (int i = 0; i < N; ++i)
        parts[i / 2 % 4] ^= __float_as_uint(values[i]);
    const uint32_t mixed = parts[0] ^ parts[1] ^ parts[2] ^ parts[3];
    asm volatile("{\n"
                 ".reg .pred met;\n"
                 "setp.eq.u32 met, %0, %1;\n"
                 "@met st.shared.u32 [%2], %0;\n"
                 "}\n" ::"r"(mixed),
                 "n"(unlikely), "r"(unread)
                 : "memory");
}

#endif
