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

#endif
