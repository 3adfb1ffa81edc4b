/*
 * Constants that follow from a configuration, and its legality at compile time. Everything here
 * is a constant expression: no branch on a configuration field is left in a kernel.
 */
#ifndef FLASH_KERNELS_SM90_DERIVE_CUH
#define FLASH_KERNELS_SM90_DERIVE_CUH

#include "sm90/sm90_kernel.h"

/* ---- threads ---- */

template <flash_config_t C> constexpr int consumers = sm90_consumers(&C);
template <flash_config_t C> constexpr int consumer_threads = consumers<C> *SM90_WARPGROUP_THREADS;
template <flash_config_t C>
constexpr int block_threads = consumer_threads<C> + SM90_WARPGROUP_THREADS;
constexpr int warp_threads = 32;
constexpr int warpgroup_warps = SM90_WARPGROUP_THREADS / warp_threads;

/* The warps of the first warpgroup: one loads, one hands out tiles, the others look over V. */
enum { PRODUCER_WARP, SCHEDULER_WARP, FIRST_GUARD_WARP };
constexpr int guard_warps = warpgroup_warps - FIRST_GUARD_WARP;
constexpr int guard_threads = guard_warps * warp_threads;

/* The 64K registers of a multiprocessor, in eights: what loads needs few. */
template <flash_config_t C> constexpr int producer_registers = consumers<C> == 3 ? 32 : 40;
template <flash_config_t C> constexpr int consumer_registers = consumers<C> == 3 ? 160 : 232;

/* ---- accumulators of a thread, and steps of 16 along the contractions ---- */

template <flash_config_t C> constexpr int score_registers = C.B_c / 2;
template <flash_config_t C> constexpr int output_registers = C.d_head / 2;
template <flash_config_t C> constexpr int head_steps = C.d_head / 16;
template <flash_config_t C> constexpr int key_steps = C.B_c / 16;

/* Fragments of Q stay in registers where they leave 40 for everything else: a quarter less to read
 * from shared memory in QK^T, and Q's place is free for the next tile at once. Measured on an H200:
 * +2 % for full, +4 to 9 % for causal attention at d_head 128. */
template <flash_config_t C> constexpr int query_registers = head_steps<C> * 4;
template <flash_config_t C> constexpr int probability_registers = key_steps<C> * 4;
template <flash_config_t C>
constexpr bool q_in_registers =
    score_registers<C> + probability_registers<C> + output_registers<C> + query_registers<C> <=
    consumer_registers<C> - 40;

/* ---- shared memory ---- */

constexpr int panel_row_bytes = SM90_PANEL_ELEMENTS * SM90_ELEMENT_BYTES;
template <flash_config_t C> constexpr int panels = sm90_panels(&C);
template <flash_config_t C> constexpr int q_panel_bytes = C.B_r *panel_row_bytes;
template <flash_config_t C> constexpr int kv_panel_bytes = C.B_c *panel_row_bytes;
template <flash_config_t C> constexpr int q_bytes = sm90_tile_bytes(&C, C.B_r);
template <flash_config_t C> constexpr int kv_bytes = sm90_tile_bytes(&C, C.B_c);

/* ---- features ---- */

template <flash_config_t C> constexpr bool has_window = (C.features & FLASH_FEATURE_WINDOW) != 0;
/* Some keys of a sequence may be hidden from some of its queries. */
template <flash_config_t C>
constexpr bool has_mask = has_window<C> || (C.features & FLASH_FEATURE_CAUSAL) != 0;
template <flash_config_t C> constexpr bool has_softcap = (C.features & FLASH_FEATURE_SOFTCAP) != 0;

/* ---- legality ---- */

SM90_CONSTANT bool is_bool(int32_t value) {
    return value == 0 || value == 1;
}

template <flash_config_t C> __device__ constexpr void assert_legal() {
    static_assert(C.arch == FLASH_ARCH_SM90, "a configuration of another family");
    static_assert(C.dtype == FLASH_DTYPE_FP16 || C.dtype == FLASH_DTYPE_BF16, "dtype");
    static_assert(C.d_head == 64 || C.d_head == 96 || C.d_head == 128 || C.d_head == 192 ||
                      C.d_head == 256,
                  "d_head");
    static_assert(C.B_r == 64 || C.B_r == 128 || C.B_r == 192, "B_r");
    static_assert(C.B_c % 16 == 0 && C.B_c >= 16 && C.B_c <= 256, "B_c");
    static_assert(C.n_warps * warp_threads == block_threads<C>, "n_warps");
    static_assert(C.n_stages >= 2 && C.n_stages <= 4, "n_stages");
    static_assert(is_bool(C.overlap) && is_bool(C.ping_pong) && is_bool(C.persistent) &&
                      is_bool(C.longest_first) && is_bool(C.fixed_reference),
                  "a switch is 0 or 1");
    static_assert(!C.ping_pong || (C.overlap && consumers<C> > 1),
                  "ping_pong needs overlap, and two that take turns");
    static_assert(!C.longest_first || C.persistent, "longest_first needs persistent");
    static_assert(
        (C.features & ~(FLASH_FEATURE_CAUSAL | FLASH_FEATURE_WINDOW | FLASH_FEATURE_SOFTCAP)) == 0,
        "features of other families");
}

#endif
