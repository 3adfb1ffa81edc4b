/*
 * These loads and stores depend on a condition, but no lane leaves the others for it. Where lanes
 * may part, ptxas no longer sees that loops' variables are the same in all lanes, and computes the
 * descriptors of wgmma in vector registers. PTX ISA, "Data Movement and Conversion Instructions":
 * ld, st; "Parallel Synchronization and Communication Instructions": red; "Control Flow
 * Instructions": bra.uni.
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

static __device__ __forceinline__ void global_store_if(bool wanted, void *global, uint2 value) {
    asm volatile("{\n"
                 ".reg .pred wanted;\n"
                 "setp.ne.u32 wanted, %0, 0;\n"
                 "@wanted st.global.v2.b32 [%1], {%2, %3};\n"
                 "}\n" ::"r"((uint32_t)wanted),
                 "l"(global), "r"(value.x), "r"(value.y)
                 : "memory");
}

/* Stores four pairs, eight columns apart, those of them that begin within `columns` columns from
 * `global` on. `wanted` is the same in all lanes of a warp: one that wants nothing jumps. */
static __device__ __forceinline__ void global_store_pairs_if(bool wanted, int32_t columns,
                                                             float *global, const float2 (&v)[4]) {
    asm volatile("{\n"
                 ".reg .pred unwanted, exists;\n"
                 "setp.eq.u32 unwanted, %0, 0;\n"
                 "@unwanted bra.uni END;\n"
                 "setp.gt.s32 exists, %1, 0;\n"
                 "@exists st.global.v2.f32 [%2], {%3, %4};\n"
                 "setp.gt.s32 exists, %1, 8;\n"
                 "@exists st.global.v2.f32 [%2 + 32], {%5, %6};\n"
                 "setp.gt.s32 exists, %1, 16;\n"
                 "@exists st.global.v2.f32 [%2 + 64], {%7, %8};\n"
                 "setp.gt.s32 exists, %1, 24;\n"
                 "@exists st.global.v2.f32 [%2 + 96], {%9, %10};\n"
                 "END:\n"
                 "}\n" ::"r"((uint32_t)wanted),
                 "r"(columns), "l"(global), "f"(v[0].x), "f"(v[0].y), "f"(v[1].x), "f"(v[1].y),
                 "f"(v[2].x), "f"(v[2].y), "f"(v[3].x), "f"(v[3].y)
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

/* Loads a number that nobody writes while the kernel runs, or returns `otherwise`. */
static __device__ __forceinline__ float global_load_if(bool wanted, const float *global,
                                                       float otherwise) {
    float value = otherwise;
    asm volatile("{\n"
                 ".reg .pred wanted;\n"
                 "setp.ne.u32 wanted, %1, 0;\n"
                 "@wanted ld.global.nc.f32 %0, [%2];\n"
                 "}\n"
                 : "+f"(value)
                 : "r"((uint32_t)wanted), "l"(global));
    return value;
}

static __device__ __forceinline__ uint32_t global_load_if(bool wanted, const uint32_t *global,
                                                          uint32_t otherwise) {
    uint32_t value = otherwise;
    asm volatile("{\n"
                 ".reg .pred wanted;\n"
                 "setp.ne.u32 wanted, %1, 0;\n"
                 "@wanted ld.global.nc.u32 %0, [%2];\n"
                 "}\n"
                 : "+r"(value)
                 : "r"((uint32_t)wanted), "l"(global));
    return value;
}

static __device__ __forceinline__ uint32_t global_load_if(bool wanted, const uint16_t *global,
                                                          uint32_t otherwise) {
    uint32_t value = otherwise;
    asm volatile("{\n"
                 ".reg .pred wanted;\n"
                 "setp.ne.u32 wanted, %1, 0;\n"
                 "@wanted ld.global.nc.u16 %0, [%2];\n"
                 "}\n"
                 : "+r"(value)
                 : "r"((uint32_t)wanted), "l"(global));
    return value;
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

/* Sets bits atomically. */
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
