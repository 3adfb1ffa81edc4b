/*
 * What the blocks of a cluster do in each other's shared memory, and their common barrier.
 * PTX ISA, "Data Movement and Conversion Instructions: mapa"; "Parallel Synchronization and
 * Communication Instructions": mbarrier.arrive, barrier.cluster.
 */
#ifndef FLASH_KERNELS_SM90_PTX_CLUSTER_CUH
#define FLASH_KERNELS_SM90_PTX_CLUSTER_CUH

#include <stdint.h>

/* One lane of the warp arrives at a barrier of its own block and at the same one of block `rank`.
 * Relaxed there: the other block learns that what the warp waited for is done, wgmma's or TMA's
 * reads, and looks at nothing that the warp wrote. A release would wait for its stores of O. */
static __device__ __forceinline__ void mbarrier_arrive_once_at_both(uint32_t barrier,
                                                                    uint32_t rank) {
    asm volatile("{\n"
                 ".reg .pred elected;\n"
                 ".reg .b32 remote;\n"
                 "elect.sync _|elected, 0xffffffff;\n"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n"
                 "@elected mbarrier.arrive.shared::cta.b64 _, [%0];\n"
                 "@elected mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [remote];\n"
                 "}\n" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}

/* A word in the shared memory of block `rank`, at the address that it has in one's own. */
static __device__ __forceinline__ uint32_t cluster_load(uint32_t shared, uint32_t rank) {
    uint32_t value;
    asm volatile("{\n"
                 ".reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %1, %2;\n"
                 "ld.shared::cluster.u32 %0, [remote];\n"
                 "}\n"
                 : "=r"(value)
                 : "r"(shared), "r"(rank)
                 : "memory");
    return value;
}

/* All threads of the cluster's blocks; what each wrote before is seen by all after it. */
static __device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;\n" ::
                     : "memory");
}

#endif
