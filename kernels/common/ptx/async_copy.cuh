/*
 * These instructions copy from global to shared memory without registers: cp.async,
 * cp.async.commit_group, cp.async.wait_group, cp.async.wait_all (PTX ISA, "Data Movement and
 * Conversion Instructions: Asynchronous copy"). They bypass L1 (.cg), because a thread block reads
 * each block of keys once.
 */
#ifndef FLASH_KERNELS_COMMON_PTX_ASYNC_COPY_CUH
#define FLASH_KERNELS_COMMON_PTX_ASYNC_COPY_CUH

#include <stdint.h>

/* Copies 16 bytes, or writes zeros without a read of global memory. */
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

/* Copies 4 bytes, through L1, which only whole 16 bytes bypass, or writes zeros. */
static __device__ __forceinline__ void async_copy_word_or_zero(uint32_t shared, const void *global,
                                                               bool copy) {
    asm volatile("{\n"
                 ".reg .pred ignore;\n"
                 "setp.eq.b32 ignore, %2, 0;\n"
                 "cp.async.ca.shared.global [%0], [%1], 4, ignore;\n"
                 "}\n" ::"r"(shared),
                 "l"(global), "r"((int)copy)
                 : "memory");
}

/* Returns a policy of the second-level cache (PTX ISA, "createpolicy"). */
static __device__ __forceinline__ uint64_t cache_policy(bool evict_first) {
    uint64_t policy;
    if (evict_first)
        asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;\n" : "=l"(policy));
    else /* the same as without a policy, unlike evict_normal */
        asm("createpolicy.fractional.L2::evict_unchanged.b64 %0, 1.0;\n" : "=l"(policy));
    return policy;
}

/* Copies 16 bytes by a cache policy, or writes zeros. */
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

/* Makes the barrier's phase wait for the thread's copies: it expects one arrival more from now on,
 * which comes with the last of them. */
static __device__ __forceinline__ void async_copy_arrive(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];\n" ::"r"(barrier) : "memory");
}

/* Makes a group of the copies since the last call, even if there are none. */
static __device__ __forceinline__ void async_copy_commit() {
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}

/* Waits for the thread's groups except the last N. */
template <int N> static __device__ __forceinline__ void async_copy_wait_all_but() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
}

/* Waits for the thread's groups except the last one; a barrier then shows them to other threads. */
static __device__ __forceinline__ void async_copy_wait_all_but_last() {
    asm volatile("cp.async.wait_group 1;\n" ::: "memory");
}

static __device__ __forceinline__ void async_copy_wait_all() {
    asm volatile("cp.async.wait_all;\n" ::: "memory");
}

#endif
