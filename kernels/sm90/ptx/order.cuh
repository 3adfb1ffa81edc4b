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

#endif
