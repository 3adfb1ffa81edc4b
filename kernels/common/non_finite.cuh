/*
 * Infinities and NaNs among 16-bit elements are found by their bits, a chunk of 16 bytes at a time,
 * and added to elements of O. Elements of e4m3 can only be NaN.
 */
#ifndef FLASH_KERNELS_COMMON_NON_FINITE_CUH
#define FLASH_KERNELS_COMMON_NON_FINITE_CUH

#include "common/dtype.cuh"
#include "common/ptx/packed_math.cuh"

template <int DTYPE> static __device__ __forceinline__ bool is_finite(uint32_t element) {
    constexpr uint32_t exponent = dtype_exponent_bits(DTYPE);
    static_assert(dtype_size(DTYPE) == 2, "an element is half of a pair");
    return (element & exponent) != exponent;
}

template <> __device__ __forceinline__ bool is_finite<FLASH_DTYPE_E4M3>(uint32_t element) {
    constexpr uint32_t nan = dtype_exponent_bits(FLASH_DTYPE_E4M3);
    return (element & nan) != nan;
}

/* Returns 1 in each of four bytes that is a NaN of e4m3. */
static __device__ __forceinline__ uint32_t e4m3_nans(uint32_t four) {
    return ((four & 0x7f7f7f7fu) + 0x01010101u) >> 7 & 0x01010101u;
}

/* Returns the pair with zeros in place of what is not finite. */
template <int DTYPE> static __device__ __forceinline__ uint32_t finite_pair(uint32_t pair) {
    return (is_finite<DTYPE>(pair) ? pair & 0xffffu : 0) |
           (is_finite<DTYPE>(pair >> 16) ? pair & 0xffff0000u : 0);
}

/* Does the same as finite_pair() for four elements. */
template <> __device__ __forceinline__ uint32_t finite_pair<FLASH_DTYPE_E4M3>(uint32_t four) {
    return four & ~(e4m3_nans(four) * 0xffu);
}

template <int DTYPE> static __device__ __forceinline__ uint4 finite_chunk(uint4 v) {
    return uint4{finite_pair<DTYPE>(v.x), finite_pair<DTYPE>(v.y), finite_pair<DTYPE>(v.z),
                 finite_pair<DTYPE>(v.w)};
}

/* Adds 0 * v to the sum, which stays a pair of zeros until an element is not finite. */
template <int DTYPE>
static __device__ __forceinline__ uint32_t add_zero_times_chunk(uint32_t sum, uint4 v) {
    sum = multiply_add_pair<DTYPE>(v.x, 0, sum);
    sum = multiply_add_pair<DTYPE>(v.y, 0, sum);
    sum = multiply_add_pair<DTYPE>(v.z, 0, sum);
    return multiply_add_pair<DTYPE>(v.w, 0, sum);
}

/* Marks NaNs of e4m3 in the sum. */
template <>
__device__ __forceinline__ uint32_t add_zero_times_chunk<FLASH_DTYPE_E4M3>(uint32_t sum, uint4 v) {
    return sum | e4m3_nans(v.x) | e4m3_nans(v.y) | e4m3_nans(v.z) | e4m3_nans(v.w);
}

static __device__ __forceinline__ bool is_pair_of_zeros(uint32_t pair) {
    return (pair & 0x7fff7fffu) == 0;
}

/* Returns o + v if v is not finite, else o. Equal infinities stay, and opposite ones make NaN. */
template <int DTYPE>
static __device__ __forceinline__ uint32_t add_non_finite(uint32_t o, uint32_t v) {
    if (is_finite<DTYPE>(v))
        return o;
    return is_finite<DTYPE>(o) || o == v ? v : 0x7fffu;
}

/* NaN has the same bits in O of either 16-bit type. */
template <>
__device__ __forceinline__ uint32_t add_non_finite<FLASH_DTYPE_E4M3>(uint32_t o, uint32_t v) {
    return is_finite<FLASH_DTYPE_E4M3>(v) ? o : 0x7fffu;
}

template <int DTYPE>
static __device__ __forceinline__ uint32_t add_non_finite_pair(uint32_t o, uint32_t v) {
    return add_non_finite<DTYPE>(o & 0xffffu, v & 0xffffu) | add_non_finite<DTYPE>(o >> 16, v >> 16)
                                                                 << 16;
}

/* Adds an element of V to an O of fp32 if it is not finite. */
template <int DTYPE>
static __device__ __forceinline__ float add_non_finite_to_fp32(float o, const void *v, int64_t i) {
    const float element = dtype_load<DTYPE>(v, i);
    return isfinite(element) ? o : o + element;
}

template <>
__device__ __forceinline__ float add_non_finite_to_fp32<FLASH_DTYPE_E4M3>(float o, const void *v,
                                                                          int64_t i) {
    return is_finite<FLASH_DTYPE_E4M3>(static_cast<const uint8_t *>(v)[i]) ? o : NAN;
}

#endif
