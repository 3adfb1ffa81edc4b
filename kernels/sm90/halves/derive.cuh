/*
 * A configuration of SM90_MLA or SM90_WIDE is checked at compile time, and its constants follow
 * from it. Those of tiles, panels and scores are those of SM90 (sm90/derive.cuh).
 */
#ifndef FLASH_KERNELS_SM90_HALVES_DERIVE_CUH
#define FLASH_KERNELS_SM90_HALVES_DERIVE_CUH

#include "sm90/derive.cuh"
#include "sm90/halves_kernel.h"
#include "sm90/ptx/tma.cuh"

enum { HALVES_MOST_STAGES = 2 };

/* V is the first columns of K, and otherwise has tiles and barriers of its own. */
template <flash_config_t C> constexpr bool v_in_k = halves_v_in_k(&C) != 0;

/* Each consumer has half of the columns of V and O, for all rows. */
template <flash_config_t C> constexpr int half_columns = d_head_v<C> / 2;
template <flash_config_t C> constexpr int half_registers = half_columns<C> / 2;
template <flash_config_t C>
constexpr int half_bytes = half_columns<C> / panel_elements<C> *kv_panel_bytes<C>;

/* Columns of a product: all of these, or half of them where a fourth warpgroup leaves the
 * compiler 128 registers for a thread, in which the accumulators of all would not fit. */
template <flash_config_t C> constexpr int half_products = converts<C> ? 2 : 1;
template <flash_config_t C> constexpr int product_columns = half_columns<C> / half_products<C>;

/* A block of K or V arrives in parts, each of some panels: V in the consumers' halves. */
template <flash_config_t C, kv_tensor T>
constexpr int tensor_parts = T == TENSOR_K ? halves_k_parts(&C) : 2;
template <flash_config_t C, kv_tensor T>
constexpr int tensor_panels = T == TENSOR_K ? q_panels<C> : output_panels<C>;
template <flash_config_t C, kv_tensor T>
constexpr int part_panels = tensor_panels<C, T> / tensor_parts<C, T>;

/* The scales of latent tokens arrive in a panel of their own, left of the others, which is free
 * until what it is for is converted: the token's four in the first chunk of its row. */
template <flash_config_t C>
constexpr int latent_scales_offset = landing_offset<C, TENSOR_K> - kv_panel_bytes<C>;
template <flash_config_t C, kv_tensor T>
constexpr int loaded_bytes = landing_bytes<C, T> + (is_latent<C> ? kv_panel_bytes<C> : 0);

/* K that is V too is read once; otherwise tiles of neighbouring rows read the same keys. */
template <flash_config_t C>
constexpr uint64_t keys_policy = v_in_k<C> ? l2_evict_first : l2_evict_last;

/* Barriers at which a block arrives: one for each part; or one, if it is to be converted. */
template <flash_config_t C, kv_tensor T>
constexpr int arrivals = converts<C> ? 1 : tensor_parts<C, T>;

template <flash_config_t C> __device__ constexpr void assert_halves() {
    static_assert(sm90_shares_rows(&C), "a configuration of another family");
    static_assert(has_half_operands<C>, "steps of wgmma are 16 elements of 16 bits");
    SM90_MLA_FWD_RULES(ASSERT_RULE, &C)
    static_assert(q_panels<C> % tensor_parts<C, TENSOR_K> == 0, "whole panels in each part");
    static_assert(C.B_r == SM90_WARPGROUP_ROWS, "B_r: both consumers have the same rows");
    static_assert(C.B_c == DECODE_UNIT_KEYS, "B_c");
    static_assert(C.n_stages <= HALVES_MOST_STAGES, "n_stages");
    static_assert(has_varlen<C>, "the map of K is that of a ragged tensor");
}

#endif
