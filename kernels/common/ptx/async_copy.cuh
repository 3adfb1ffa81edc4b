/*
 * Copies from global to shared memory that no register carries.
 * PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy": cp.async,
 * cp.async.commit_group, cp.async.wait_group, cp.async.wait_all. Past L1 (.cg): a block is read
 * once by each thread block.
 */
#ifndef FLASH_KERNELS_COMMON_PTX_ASYNC_COPY_CUH
#define FLASH_KERNELS_COMMON_PTX_ASYNC_COPY_CUH

#include <stdint.h>

/* Copies 16 bytes, or fills them with zeros without looking at global memory. */
static __device__ __forceinline__ void async_copy_or_zero(uint32_t shared, const void *global,
                                                          bool copy) {
    asm volatile("{\n"
                 ".reg .pred ignore;\n"
                 "setp.eq.b32 ignore, %2, 0;\n"
                 "cp.async.cg.shared.global [%0], [%1], 16, ignore;\n"
                 "}\n" ::"r"(shared),
                 "l"(global), "r"((int)copy)
                 : "memory");
}

/* How long the second-level cache should keep what is read. PTX ISA, "createpolicy". */
static __device__ __forceinline__ uint64_t cache_policy(bool evict_first) {
    uint64_t policy;
    if (evict_first)
        asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;\n" : "=l"(policy));
    else /* as without a policy; evict_normal is not */
        asm("createpolicy.fractional.L2::evict_unchanged.b64 %0, 1.0;\n" : "=l"(policy));
    return policy;
}

/* Copies 16 bytes by a cache policy, or fills them with zeros. */
static __device__ __forceinline__ void async_copy_or_zero(uint32_t shared, const void *global,
                                                          bool copy, uint64_t policy) {
    asm volatile("{\n"
                 ".reg .pred ignore;\n"
                 "setp.eq.b32 ignore, %2, 0;\n"
                 "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, ignore, %3;\n"
                 "}\n" ::"r"(shared),
                 "l"(global), "r"((int)copy), "l"(policy)
                 : "memory");
}

/* Copies 16 bytes, or leaves shared memory as it is. */
static __device__ __forceinline__ void async_copy_if(uint32_t shared, const void *global,
                                                     bool copy) {
    asm volatile("{\n"
                 ".reg .pred copy;\n"
                 "setp.ne.b32 copy, %2, 0;\n"
                 "@copy cp.async.cg.shared.global [%0], [%1], 16;\n"
                 "}\n" ::"r"(shared),
                 "l"(global), "r"((int)copy)
                 : "memory");
}

/* The copies since the last call, even if there are none, become a group. */
static __device__ __forceinline__ void async_copy_commit() {
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}

/* Waits for the thread's own groups but the last N. */
template <int N> static __device__ __forceinline__ void async_copy_wait_all_but() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
}

/* Waits for the thread's own groups but the last one; a barrier then makes what has arrived
 * visible to the others. */
static __device__ __forceinline__ void async_copy_wait_all_but_last() {
    asm volatile("cp.async.wait_group 1;\n" ::: "memory");
}

/* Waits for all copies of the thread. */
static __device__ __forceinline__ void async_copy_wait_all() {
    asm volatile("cp.async.wait_all;\n" ::: "memory");
}

#endif
