/*
 * The Tensor Memory Accelerator copies tiles between global and shared memory. PTX ISA, "Data
 * Movement and Conversion Instructions: Tensor copy": cp.async.bulk.tensor,
 * cp.async.bulk.commit_group, cp.async.bulk.wait_group; L2 hints as createpolicy makes them ("Cache
 * eviction priority hints").
 *
 * A ragged tensor, [tokens, head, d_head], has a map of five axes, by which TMA minds the ends of
 * each of its sequences: columns; rows of the sequence, counted so that it ends at SM90_RAGGED_END,
 * which is the axis' extent; heads; the token after the sequence's last, in the same steps as rows;
 * and an axis along which SM90_RAGGED_END steps, of 2^34 bytes less one row's, wrap addresses of 64
 * bits round to SM90_RAGGED_END rows before.
 */
#ifndef FLASH_KERNELS_SM90_PTX_TMA_CUH
#define FLASH_KERNELS_SM90_PTX_TMA_CUH

#include "sm90/sm90_kernel.h"

#include <stdint.h>

constexpr uint64_t l2_evict_first = 0x12F0000000000000;
constexpr uint64_t l2_evict_last = 0x14F0000000000000;

/* This is a box of a tensor: its first column, row and head, and the batch entry or, in a ragged
 * tensor, the token after the sequence's last. */
typedef struct tma_box {
    int32_t column;
    int32_t row;
    int32_t head;
    int32_t entry;
} tma_box_t;

static __device__ __forceinline__ void tma_prefetch_map(const sm90_tensor_map_t *map) {
    asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
}

/* Starts to load a box into shared memory. The barrier counts its bytes, with those beyond the
 * tensor's bounds, which become zeros. */
template <bool RAGGED>
static __device__ __forceinline__ void tma_load(uint32_t shared, const sm90_tensor_map_t *map,
                                                const tma_box_t &box, uint32_t barrier,
                                                uint64_t hint) {
    if constexpr (RAGGED)
        asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;\n" ::"r"(shared),
                     "l"(map), "r"(box.column), "r"(box.row), "r"(box.head), "r"(box.entry),
                     "r"(SM90_RAGGED_END), "r"(barrier), "l"(hint)
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;\n" ::"r"(shared),
                     "l"(map), "r"(box.column), "r"(box.row), "r"(box.head), "r"(box.entry),
                     "r"(barrier), "l"(hint)
                     : "memory");
}

/* Starts to load bytes that lie one behind the other, in whole 16, into shared memory. */
static __device__ __forceinline__ void bulk_load(uint32_t shared, const void *global,
                                                 uint32_t bytes, uint32_t barrier, uint64_t hint) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;\n" ::"r"(shared),
                 "l"(global), "r"(bytes), "r"(barrier), "l"(hint)
                 : "memory");
}

/* Starts to store a box from shared memory. What lies beyond the tensor's bounds is not written. */
template <bool RAGGED>
static __device__ __forceinline__ void tma_store(const sm90_tensor_map_t *map, const tma_box_t &box,
                                                 uint32_t shared) {
    if constexpr (RAGGED)
        asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group "
                     "[%0, {%1, %2, %3, %4, %5}], [%6];\n" ::"l"(map),
                     "r"(box.column), "r"(box.row), "r"(box.head), "r"(box.entry),
                     "r"(SM90_RAGGED_END), "r"(shared)
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group "
                     "[%0, {%1, %2, %3, %4}], [%5];\n" ::"l"(map),
                     "r"(box.column), "r"(box.row), "r"(box.head), "r"(box.entry), "r"(shared)
                     : "memory");
}

/* Makes this thread's stores since the last call a group. */
static __device__ __forceinline__ void tma_store_commit() {
    asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}

/* Waits until this thread's stores have read what they store. */
static __device__ __forceinline__ void tma_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory");
}

/* Waits until this thread's stores are done. */
static __device__ __forceinline__ void tma_store_wait() {
    asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
}

#endif
