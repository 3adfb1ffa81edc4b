/*
 * The multi-function unit computes these functions approximately. PTX ISA, "Floating Point
 * Instructions": ex2.approx.ftz.f32 (2 ulp; exact at 0 and -inf), lg2.approx.ftz.f32 (relative
 * error 2^-22, absolute between 0.5 and 2; -inf at 0), rcp.approx.ftz.f32 (1 ulp).
 */
#ifndef FLASH_KERNELS_COMMON_PTX_MATH_CUH
#define FLASH_KERNELS_COMMON_PTX_MATH_CUH

static __device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float log2_approx(float x) {
    float y;
    asm volatile("lg2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

/* Returns the larger number, or NaN if one is NaN (PTX ISA, "max", .NaN). */
static __device__ __forceinline__ float max_nan(float x, float y) {
    float z;
    asm("max.NaN.f32 %0, %1, %2;\n" : "=f"(z) : "f"(x), "f"(y));
    return z;
}

/* Returns the smaller number, or NaN if one is NaN (PTX ISA, "min", .NaN). */
static __device__ __forceinline__ float min_nan(float x, float y) {
    float z;
    asm("min.NaN.f32 %0, %1, %2;\n" : "=f"(z) : "f"(x), "f"(y));
    return z;
}

#endif
