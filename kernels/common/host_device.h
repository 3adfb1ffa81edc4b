/*
 * Functions that start with FLASH_HOST_DEVICE are for host code, and for device code too where CUDA
 * compiles them. Those that start with FLASH_HOST_DEVICE_CALLED are called there, not inlined.
 */
#ifndef FLASH_KERNELS_COMMON_HOST_DEVICE_H
#define FLASH_KERNELS_COMMON_HOST_DEVICE_H

#ifdef __CUDACC__
#define FLASH_HOST_DEVICE        __host__ __device__
#define FLASH_HOST_DEVICE_CALLED __host__ __device__ __noinline__ static
#else
#define FLASH_HOST_DEVICE
#define FLASH_HOST_DEVICE_CALLED static inline
#endif

#endif
