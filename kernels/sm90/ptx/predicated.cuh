/*
 * Stores under a condition that differs from lane to lane, without a branch: where lanes may part,
 * ptxas no longer sees that loops' variables are the same in all lanes, and computes the
 * descriptors of wgmma in vector registers. PTX ISA, "Data Movement and Conversion Instructions":
 * st; "Parallel Synchronization and Communication Instructions": red.
 */
#ifndef FLASH_KERNELS_SM90_PTX_PREDICATED_CUH
#define FLASH_KERNELS_SM90_PTX_PREDICATED_CUH

#include <stdint.h>

static __device__ __forceinline__ void global_store_if(bool wanted, void *global, uint4 value) {
    asm volatile("{\n"
                 ".reg .pred wanted;\n"
                 "setp.ne.u32 wanted, %0, 0;\n"
                 "@wanted st.global.v4.b32 [%1], {%2, %3, %4, %5};\n"
                 "}\n" ::"r"((uint32_t)wanted),
                 "l"(global), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
                 : "memory");
}

static __device__ __forceinline__ void global_store_if(bool wanted, float *global, float2 value) {
    asm volatile("{\n"
                 ".reg .pred wanted;\n"
                 "setp.ne.u32 wanted, %0, 0;\n"
                 "@wanted st.global.v2.f32 [%1], {%2, %3};\n"
                 "}\n" ::"r"((uint32_t)wanted),
                 "l"(global), "f"(value.x), "f"(value.y)
                 : "memory");
}

static __device__ __forceinline__ void global_store_if(bool wanted, float *global, float value) {
    asm volatile("{\n"
                 ".reg .pred wanted;\n"
                 "setp.ne.u32 wanted, %0, 0;\n"
                 "@wanted st.global.f32 [%1], %2;\n"
                 "}\n" ::"r"((uint32_t)wanted),
                 "l"(global), "f"(value)
                 : "memory");
}

static __device__ __forceinline__ void shared_store_if(bool wanted, uint32_t shared,
                                                       uint32_t value) {
    asm volatile("{\n"
                 ".reg .pred wanted;\n"
                 "setp.ne.u32 wanted, %0, 0;\n"
                 "@wanted st.shared.u32 [%1], %2;\n"
                 "}\n" ::"r"((uint32_t)wanted),
                 "r"(shared), "r"(value)
                 : "memory");
}

/* Sets bits, atomically. */
static __device__ __forceinline__ void shared_or_if(bool wanted, uint32_t shared, uint32_t bits) {
    asm volatile("{\n"
                 ".reg .pred wanted;\n"
                 "setp.ne.u32 wanted, %0, 0;\n"
                 "@wanted red.shared.or.b32 [%1], %2;\n"
                 "}\n" ::"r"((uint32_t)wanted),
                 "r"(shared), "r"(bits)
                 : "memory");
}

#endif
