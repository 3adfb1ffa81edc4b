/*
 * Threads wait at barriers in shared memory, which count arrivals and bytes, and at the named
 * barriers of a block. PTX ISA, "Parallel Synchronization and Communication Instructions":
 * mbarrier, barrier.cta; and "Async proxy" under the memory consistency model for the fences.
 */
#ifndef FLASH_KERNELS_SM90_PTX_BARRIER_CUH
#define FLASH_KERNELS_SM90_PTX_BARRIER_CUH

#include <stdint.h>

enum { MBARRIER_BYTES = 8 };

static __device__ __forceinline__ void mbarrier_init(uint32_t barrier, int32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}

/* Makes initialised barriers visible to TMA. */
static __device__ __forceinline__ void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

static __device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}

/* One lane of the warp arrives if `arrive` is true. There is no branch: ptxas would not keep track
 * of the wgmma under way over it. */
static __device__ __forceinline__ void mbarrier_arrive_once_if(uint32_t barrier, bool arrive) {
    asm volatile("{\n"
                 ".reg .pred elected, asked;\n"
                 "elect.sync _|elected, 0xffffffff;\n"
                 "setp.ne.and.b32 asked, %1, 0, elected;\n"
                 "@asked mbarrier.arrive.shared::cta.b64 _, [%0];\n"
                 "}\n" ::"r"(barrier),
                 "r"((int)arrive)
                 : "memory");
}

/* All lanes get what the one loads that arrives in the functions above. */
static __device__ __forceinline__ int32_t shared_load_by_one(uint32_t shared) {
    int32_t value;
    asm volatile("{\n"
                 ".reg .pred elected;\n"
                 ".reg .b32 leader, loaded;\n"
                 "elect.sync leader|elected, 0xffffffff;\n"
                 "mov.b32 loaded, 0;\n"
                 "@elected ld.shared.b32 loaded, [%1];\n"
                 "shfl.sync.idx.b32 %0, loaded, leader, 31, 0xffffffff;\n"
                 "}\n"
                 : "=r"(value)
                 : "r"(shared)
                 : "memory");
    return value;
}

/* This thread arrives if `arrive` is true, without a branch. */
static __device__ __forceinline__ void mbarrier_arrive_if(uint32_t barrier, bool arrive) {
    asm volatile("{\n"
                 ".reg .pred asked;\n"
                 "setp.ne.u32 asked, %1, 0;\n"
                 "@asked mbarrier.arrive.shared::cta.b64 _, [%0];\n"
                 "}\n" ::"r"(barrier),
                 "r"((uint32_t)arrive)
                 : "memory");
}

/* Arrives, and announces bytes that TMA will bring in this phase. */
static __device__ __forceinline__ void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
}

/* Waits until the phase of this parity has completed. The phase before the first one has parity
 * 1. */
static __device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred complete;\n"
                 "AGAIN:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 complete, [%0], %1;\n"
                 "@complete bra DONE;\n"
                 "bra AGAIN;\n"
                 "DONE:\n"
                 "}\n" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* Waits for `threads` arrivals at named barrier `id`, this warp's among them. */
static __device__ __forceinline__ void named_barrier_sync(int id, int threads) {
    asm volatile("barrier.cta.sync.aligned %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

/* Waits as named_barrier_sync() does. Returns whether the condition holds for any of the
 * threads. */
static __device__ __forceinline__ bool named_barrier_or(int id, int threads, bool condition) {
    uint32_t any;
    asm volatile("{\n"
                 ".reg .pred own, any;\n"
                 "setp.ne.u32 own, %3, 0;\n"
                 "barrier.cta.red.or.aligned.pred any, %1, %2, own;\n"
                 "selp.u32 %0, 1, 0, any;\n"
                 "}\n"
                 : "=r"(any)
                 : "r"(id), "r"(threads), "r"((uint32_t)condition)
                 : "memory");
    return any != 0;
}

/* Arrives at a named barrier without waiting. */
static __device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
    asm volatile("barrier.cta.arrive.aligned %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

/* Orders this thread's ordinary accesses to shared memory before what wgmma and TMA do there. */
static __device__ __forceinline__ void async_proxy_fence() {
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

/* Orders this thread's ordinary accesses to global memory before what TMA does there. */
static __device__ __forceinline__ void async_proxy_fence_global() {
    asm volatile("fence.proxy.async.global;\n" ::: "memory");
}

#endif
