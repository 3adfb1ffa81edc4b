/*
 * By programmatic dependent launch a kernel may start before the one ahead of it in the stream has
 * ended, and then waits for it (PTX ISA, "Parallel Synchronization and Communication Instructions:
 * griddepcontrol"). Before compute capability 9.0 kernels of a stream run one after the other.
 */
#ifndef FLASH_KERNELS_COMMON_PTX_DEPENDENT_LAUNCH_CUH
#define FLASH_KERNELS_COMMON_PTX_DEPENDENT_LAUNCH_CUH

/* Lets the dependent kernel start as soon as every block of this one has called this or ended. */
static __device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

/* Waits until the kernel ahead is complete and what it wrote is visible. */
static __device__ __forceinline__ void wait_for_primary() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

#endif
