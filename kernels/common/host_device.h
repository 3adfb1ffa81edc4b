/*
 * Functions that start with FLASH_HOST_DEVICE are for host code, and for device code too where CUDA
 * compiles them.
 */
#ifndef FLASH_KERNELS_COMMON_HOST_DEVICE_H
#define FLASH_KERNELS_COMMON_HOST_DEVICE_H

#ifdef __CUDACC__
#define FLASH_HOST_DEVICE __host__ __device__
#else
#define FLASH_HOST_DEVICE
#endif

#endif
