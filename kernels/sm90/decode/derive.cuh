/*
 * A configuration of SM90_DECODE is checked at compile time. The constants that follow from it are
 * those of SM90 (sm90/derive.cuh), whose tiles these are.
 */
#ifndef FLASH_KERNELS_SM90_DECODE_DERIVE_CUH
#define FLASH_KERNELS_SM90_DECODE_DERIVE_CUH

#include "sm90/decode_kernel.h"
#include "sm90/derive.cuh"

template <flash_config_t C> __device__ constexpr void assert_decodes() {
    static_assert(C.arch == FLASH_ARCH_SM90_DECODE, "a configuration of another family");
    static_assert(has_half_operands<C> && !converts<C>, "dtype");
    static_assert(C.d_head == 64 || C.d_head == 128 || C.d_head == 256, "d_head");
    static_assert(C.B_r == 64 || C.B_r == 128, "B_r");
    static_assert(C.B_c % DECODE_UNIT_KEYS == 0 && C.B_c <= 256, "B_c: whole units");
    static_assert(C.n_warps * warp_threads == block_threads<C>, "n_warps");
    static_assert(C.n_stages >= 2 && C.n_stages <= 4, "n_stages");
    static_assert(!C.ping_pong || consumers<C> > 1, "ping_pong needs two that take turns");
    static_assert(has_varlen<C>, "maps of K and V are those of ragged tensors");
}

#endif
