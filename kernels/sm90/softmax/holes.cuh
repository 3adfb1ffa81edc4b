/*
 * Keys in holes of a page table are hidden from all rows. The warp that loads K tells consumers
 * where they are (load/pages.cuh).
 */
#ifndef FLASH_KERNELS_SM90_SOFTMAX_HOLES_CUH
#define FLASH_KERNELS_SM90_SOFTMAX_HOLES_CUH

#include "sm90/block_state.cuh"
#include "sm90/softmax/mask_bits.cuh"

#include <type_traits>

struct no_columns {};

/* These bits are set for the thread's columns of a block that lie in no hole; kernels that do not
 * hide holes have none. */
template <flash_config_t C>
using unhidden_columns = std::conditional_t<hides_holes<C>, column_bits<C.B_c / 4>, no_columns>;

/* Takes the bits of a block. words: those of its stage, before it is released. */
template <flash_config_t C>
static __device__ __forceinline__ unhidden_columns<C> take_holes(const flash_bias_t &bias,
                                                                 const uint32_t *words) {
    unhidden_columns<C> shown = {};
    if constexpr (hides_holes<C>)
        if (bias.has_page_holes)
#pragma unroll
            for (int i = 0; i < (C.B_c + 31) / 32; ++i)
                set_columns<C>(shown, i, ~((const volatile uint32_t *)words)[i]);
    return shown;
}

/* Takes those of the block in a stage of K. */
template <flash_config_t C>
static __device__ __forceinline__ unhidden_columns<C> take_holes_of_stage(const flash_bias_t &bias,
                                                                          int stage) {
    if constexpr (hides_holes<C>)
        return take_holes<C>(bias, holes_of_stage<C>(stage));
    else
        return {};
}

/* Hides the columns in holes, after what joins the scores. */
template <flash_config_t C>
static __device__ __forceinline__ void hide_holes(score_tile<C> &s, const flash_bias_t &bias,
                                                  const unhidden_columns<C> &shown) {
    if constexpr (hides_holes<C>)
        if (bias.has_page_holes)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                hide_columns<C>(s, half, shown);
}

#endif
