/*
 * A configuration of SM90_DECODE is checked at compile time. The constants that follow from it are
 * those of SM90 (sm90/derive.cuh), whose tiles these are.
 */
#ifndef FLASH_KERNELS_SM90_DECODE_DERIVE_CUH
#define FLASH_KERNELS_SM90_DECODE_DERIVE_CUH

#include "sm90/decode_kernel.h"
#include "sm90/derive.cuh"

enum { V_LOAD_WARP = KV_LOAD_WARP + 1, FIRST_TRANSPOSE_WARP };

template <flash_config_t C> __device__ constexpr void assert_decodes() {
    static_assert(C.arch == FLASH_ARCH_SM90_DECODE, "a configuration of another family");
    static_assert(has_half_operands<C> || multiplies_e4m3<C>, "wgmma has other types too");
    SM90_DECODE_FWD_RULES(ASSERT_RULE, &C)
    static_assert(C.B_c % DECODE_UNIT_KEYS == 0 && C.B_c <= 256, "B_c: whole units");
    static_assert(has_varlen<C>, "maps of K and V are those of ragged tensors");
}

#endif
